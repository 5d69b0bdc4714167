"""`lifeboat agent`: runs beside a model server and keeps it registered with a router.

Exit codes: 0 removed after a signal, 1 the router refuses for good, 2 a wrong call.
Held by tests/fleet/test_beside.py.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any, Literal

import click

from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.settings.entries import NAME
from lifeboat.settings.problems import show
from lifeboat.settings.quantities import Duration, Integer
from lifeboat.settings.urls import URL_RULE, name_from_url, parse_url, without_password
from lifeboat.settings.values import BadValueError, ValueType

AUTO = "auto"


def _checked(kind: ValueType) -> Any:
    """Return a click callback that applies a rule of the settings."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
        if value is None:
            return None
        try:
            return kind.parse(value)
        except BadValueError:
            raise click.BadParameter(f"{show(value)} must be {kind.rule}", ctx, param) from None

    return check


def _url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return parse_url(value if "://" in value else f"http://{value}")
    except BadValueError as error:
        message = f"{without_password(value)!r} {URL_RULE}. {error}."
        raise click.BadParameter(message, ctx, param) from None


def _limit(ctx: click.Context, param: click.Parameter, value: str) -> int | Literal["auto"]:
    if value == AUTO:
        return AUTO
    try:
        return Integer(0, 1_000_000).parse(value)
    except BadValueError:
        rule = "must be auto, or a whole number from 0 to 1000000"
        raise click.BadParameter(f"{show(value)} {rule}", ctx, param) from None


def _seconds(flag: str, default: str, bounds: Duration, says: str) -> Any:
    return click.option(
        flag,
        default=default,
        show_default=True,
        metavar="SECONDS",
        callback=_checked(bounds),
        help=says,
    )


@click.command()
@click.option(
    "--router",
    required=True,
    callback=_url,
    metavar="URL",
    help="The router; its admin listener where it has one.",
)
@click.option(
    "--server",
    required=True,
    callback=_url,
    metavar="URL",
    help="The model server beside which this runs.",
)
@click.option(
    "--advertise",
    callback=_url,
    metavar="URL",
    help="Where the router reaches the server, if that is not --server.",
)
@click.option(
    "--name",
    callback=_checked(NAME),
    help="The backend's name; by default the advertised host and port.",
)
@click.option(
    "--kind",
    type=click.Choice([AUTO, *(kind.value for kind in Kind)]),
    default=AUTO,
    show_default=True,
    help="What software the server is.",
)
@click.option(
    "--serves",
    multiple=True,
    type=click.Choice([one.value for one in Capability]),
    help="What it can do; may be repeated. By default generate.",
)
@click.option(
    "--max-concurrency",
    default=AUTO,
    show_default=True,
    callback=_limit,
    metavar="auto|N",
    help="Most requests in flight; auto is the slots it reports.",
)
@_seconds(
    "--ttl",
    "15",
    Duration(1, 86_400),
    "The router drops the server when it hears nothing for this long.",
)
@_seconds(
    "--grace", "120", Duration(0, 604_800), "Longest wait for running requests after SIGTERM."
)
@click.option(
    "--token",
    envvar="LIFEBOAT_ADMIN_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="The router's admin token. Better given by the variable or the file: command "
    "lines can be read.",
)
@click.option(
    "--token-file",
    envvar="LIFEBOAT_ADMIN_TOKEN_FILE",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A file that holds it.",
)
@click.option(
    "--api-key",
    envvar="LIFEBOAT_AGENT_SERVER_KEY",
    metavar="KEY",
    help="The server's own key, which the router will send.",
)
def agent(
    router: str, server: str, advertise: str | None, name: str | None, kind: str,
    serves: tuple[str, ...], max_concurrency: int | Literal["auto"], ttl: float, grace: float,
    token: str | None, token_file: Path | None, api_key: str | None,
) -> None:  # fmt: skip
    """Register a model server with a router and keep it there until SIGTERM.

    It learns the server's kind and slots, registers it, renews that three times per --ttl, and on
    SIGTERM or Ctrl-C drains it and takes it out. A second signal ends at once.
    """
    from lifeboat.fleet.beside import Agent, AgentError, Beside

    advertised = advertise or server
    told = Beside(
        name=name or name_from_url(advertised),
        router=router,
        server=server,
        advertised=advertised,
        kind=None if kind == AUTO else Kind(kind),
        serves=tuple(Capability(one) for one in serves) or (Capability.GENERATE,),
        max_concurrency=max_concurrency,
        token=token or (token_file.read_text(encoding="utf-8").strip() if token_file else None),
        api_key=api_key or None,
        ttl_s=ttl,
        grace_s=grace,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run(Agent(told)))
    except AgentError as error:
        raise click.ClickException(str(error)) from None


async def _run(agent_: Any) -> None:
    """Run the agent until a signal; the second one ends at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None

    def end() -> None:
        if stop.is_set():
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    try:
        await agent_.run(stop)
    except asyncio.CancelledError:
        logging.getLogger(__name__).warning("ended without draining")
