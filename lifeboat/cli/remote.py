"""Asks a running router over HTTP, for the commands that show what it says and change what it does.

Held by tests/cli/test_commands.py and test_operating.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lifeboat.settings.urls import URL_RULE, parse_url, without_password
from lifeboat.settings.values import BadValueError

_GIVE_TOKEN = "give it by --token-file FILE or LIFEBOAT_ADMIN_TOKEN"
_TIMEOUT_S = 5.0
"""Its control surface answers at once or is not there."""

Command = TypeVar("Command", bound=Callable[..., Any])


class NoRouterError(click.ClickException):
    """Nobody, or somebody else, answers at the address."""

    exit_code = 2


class RefusedError(click.ClickException):
    """The router refuses a call; the message is its own. status: of its answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


url_option = click.option(
    "--url",
    metavar="URL",
    help="Where the router listens; by default what LIFEBOAT_ADMIN_ADDR, or LIFEBOAT_HOST and "
    "LIFEBOAT_PORT say, else http://127.0.0.1:8400.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def token_options(command: Command) -> Command:
    """Add the options that prove to the router that its operator is calling."""
    by_file = click.option(
        "--token-file",
        envvar="LIFEBOAT_ADMIN_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A file that holds it.",
    )
    by_value = click.option(
        "--token",
        envvar="LIFEBOAT_ADMIN_TOKEN",
        show_envvar=True,
        metavar="TOKEN",
        help="The router's admin token. Better given by the variable or the file: command lines "
        "can be read.",
    )
    return by_value(by_file(command))


def token_of(token: str | None, token_file: Path | None) -> str | None:
    """Return the admin token that the two options give, None where neither does."""
    if token or token_file is None:
        return token or None
    return token_file.read_text(encoding="utf-8").strip() or None


def default_url() -> str:
    """Return the address that the environment gives a router on this machine."""
    admin = os.environ.get("LIFEBOAT_ADMIN_ADDR")
    if admin:
        host, _, port = admin.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    else:
        host = os.environ.get("LIFEBOAT_HOST") or "127.0.0.1"
        port = os.environ.get("LIFEBOAT_PORT") or "8400"
    # What stands for every address is one to listen on, not to call.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def fetch(url: str | None, path: str) -> dict[str, Any]:
    """Return the JSON object at a path of the router; raises NoRouterError."""
    try:
        return call(url, "GET", path)
    except RefusedError as error:
        reason = f"answered {error.status} for {path}: is it a Lifeboat router's address?"
        raise NoRouterError(f"{_origin(url)} {reason}") from None


def call(
    url: str | None, method: str, path: str, body: object = None, token: str | None = None
) -> dict[str, Any]:
    """Return the JSON object that the router answers a call with; empty for an empty answer.

    Raises RefusedError where it refuses, NoRouterError where no router is there.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, Request, build_opener

    origin = _origin(url)
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    # A proxy of the environment is for the world outside, not for one's own router.
    opener = build_opener(ProxyHandler({}))
    try:
        request = Request(f"{origin}{path}", data, headers, method=method)
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            raw = answer.read()
            page: object = json.loads(raw) if raw else {}
    except HTTPError as error:
        with error:
            message = _complaint(error.read(), error.code)
            raise RefusedError(error.code, _for_operator(error.code, message, token)) from None
    except URLError as error:
        raise _absent(origin, str(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise _absent(origin, str(error) or type(error).__name__) from None
    if not isinstance(page, dict):
        raise NoRouterError(f"{origin} answered something else than a Lifeboat router would")
    return cast("dict[str, Any]", page)


def named(page: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return the pools or the backends of a page by name."""
    return cast("dict[str, dict[str, Any]]", page.get(key) or {})


def _origin(url: str | None) -> str:
    """Return the router's address in normal spelling; raises click.BadParameter."""
    origin = url or default_url()
    try:
        return parse_url(origin if "://" in origin else f"http://{origin}")
    except BadValueError as error:
        named_by = "--url" if url else "LIFEBOAT_ADMIN_ADDR, LIFEBOAT_HOST or LIFEBOAT_PORT"
        message = f"{without_password(origin)!r} {URL_RULE}. {error}."
        raise click.BadParameter(message, param_hint=named_by) from None


def _complaint(body: bytes, status: int) -> str:
    """Return what the router says is wrong."""
    try:
        error = json.loads(body)["error"]
        return f"{error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the router answered {status}"


def _for_operator(status: int, message: str, token: str | None) -> str:
    """Return a router's complaint in the words of the command line: it speaks of headers."""
    if status == 401:
        said = "takes no such admin token" if token else "wants its admin token"
        return f"the router {said}: {_GIVE_TOKEN}"
    return f"{message} ({_GIVE_TOKEN})" if status == 403 else message


def _absent(origin: str, why: str) -> NoRouterError:
    return NoRouterError(
        f"no router answers at {origin} ({why}). "
        "Start one with `lifeboat serve`, or name another with --url."
    )
