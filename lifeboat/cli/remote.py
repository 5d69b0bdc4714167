"""Asks a running router over HTTP, for the commands that show what it says of itself."""

from __future__ import annotations

import json
import os
from typing import Any, cast

import click

_TIMEOUT_S = 5.0
"""Its control surface answers at once or is not there."""


class NoRouterError(click.ClickException):
    """Nobody, or somebody else, answers at the address."""

    exit_code = 2


url_option = click.option(
    "--url",
    metavar="URL",
    help="Where the router listens; by default what LIFEBOAT_ADMIN_ADDR, or LIFEBOAT_HOST and "
    "LIFEBOAT_PORT say, else http://127.0.0.1:8400.",
)


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
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import ProxyHandler, build_opener

    origin = (url or default_url()).rstrip("/")
    if "://" not in origin:
        origin = f"http://{origin}"
    # A proxy of the environment is for the world outside, not for one's own router.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"{origin}{path}", timeout=_TIMEOUT_S) as answer:
            body: object = json.loads(answer.read())
    except HTTPError as error:
        error.close()
        reason = f"answered {error.code} for {path}: is it a Lifeboat router's address?"
        raise NoRouterError(f"{origin} {reason}") from None
    except URLError as error:
        raise _absent(origin, str(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise _absent(origin, str(error) or type(error).__name__) from None
    if not isinstance(body, dict):
        raise NoRouterError(f"{origin} answered something else than a Lifeboat router would")
    return cast("dict[str, Any]", body)


def _absent(origin: str, why: str) -> NoRouterError:
    return NoRouterError(
        f"no router answers at {origin} ({why}). "
        "Start one with `lifeboat serve`, or name another with --url."
    )
