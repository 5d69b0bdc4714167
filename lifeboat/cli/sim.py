"""`lifeboat sim`: simulated engines behind an OpenAI-compatible server, by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from lifeboat.sim.config import OPTIONS, EngineConfig, Option
from lifeboat.sim.problems import ConfigError

if TYPE_CHECKING:
    from lifeboat.sim.server import SimulatedServer

DEFAULT_PORT = 8500
_LISTS = frozenset({"served_name", "serves"})
_SWITCHES = frozenset({"enable_faults"})


def _option(row: Option) -> click.Option:
    """Return the command-line option of a row; values are read as YAML scalars, as in a file."""
    assert row.flag is not None
    text = f"{row.doc} [default: {row.default}]"
    if row.key in _SWITCHES:
        return click.Option([row.flag, row.key], is_flag=True, default=None, help=text)
    if row.key in _LISTS:
        return click.Option([row.flag, row.key], multiple=True, help=f"{text}; may be repeated")
    return click.Option([row.flag, row.key], help=text)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine options that were given on the command line."""
    given: dict[str, Any] = {}
    for row in OPTIONS:
        value = flags.get(row.key)
        if value is None or value == ():
            continue
        if row.key in _LISTS:
            given[row.key] = list(value)
        else:
            given[row.key] = _scalar(value) if isinstance(value, str) else value
    return given


def _scalar(text: str) -> Any:
    """Return what the text means in a YAML file; names stay text, whatever they look like."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, (int, float)) else text


def _configs(config: str | None, given: Mapping[str, Any]) -> list[EngineConfig]:
    if config is None:
        return [EngineConfig.from_mapping(given, "")]
    from lifeboat.sim.files import load_engines

    return load_engines(Path(config), given)


def _complain(error: ConfigError) -> None:
    for problem in error.problems:
        click.echo(f"error: {problem}", err=True)


def _list_known() -> None:
    from lifeboat.sim.catalogue import hardware_names, load_hardware, load_model, model_names

    for title, rows in (
        ("Models (--model):", [(name, load_model(name).source) for name in model_names()]),
        ("Hardware (--hardware):", [(n, load_hardware(n).source) for n in hardware_names()]),
    ):
        click.echo(title)
        for name, source in rows:
            click.echo(f"  {name:<16} {source}")
    click.echo("Or give either one the path of a YAML file of your own.")


def _announce(server: SimulatedServer, url: str) -> None:
    for model in server.models:
        config = model.config
        line = f"a line of {config.max_waiting}" if config.max_waiting else "an unbounded line"
        copies = f"{config.replicas} x " if config.replicas > 1 else ""
        click.echo(
            f"lifeboat sim: {', '.join(model.names)} ({copies}{config.model} on {config.hardware},"
            f" {config.max_num_seqs} seats, {line}) on {url}"
        )
    name = server.models[0].names[0]
    body = (
        f'{{"model": "{name}", "max_tokens": 8, "messages": [{{"role": "user", "content": "Hi"}}]}}'
    )
    click.echo(f"  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
    click.echo(f"  curl {url}/control/capacity")


async def _serve(configs: list[EngineConfig], host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; raises OSError when the address is taken."""
    from lifeboat.sim.server import SimulatedServer

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows has no such handlers.
            loop.add_signal_handler(wanted, stopped.set)
    server = SimulatedServer(configs)
    try:
        _announce(server, await server.start(host, port))
        await stopped.wait()
    finally:
        await server.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _sim(list_known: bool, config: str | None, host: str, port: int, **flags: Any) -> None:
    if list_known:
        _list_known()
        return
    try:
        configs = _configs(config, _given(flags))
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_serve(configs, host, port))
    except ConfigError as error:
        _complain(error)
        sys.exit(2)
    except OSError as error:
        from lifeboat.edge.listener import cannot_listen

        click.echo(f"error: {cannot_listen(host, port, error, '--host', '--port')}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


_OWN_OPTIONS: list[click.Parameter] = [
    click.Option(["--list", "list_known"], is_flag=True, help="Print known models and hardware."),
    click.Option(
        ["--config"],
        metavar="FILE_OR_DIR",
        help="Engines from a YAML file (one, or a list under `models:`) or a directory of them; "
        "other options given here override those of every engine.",
    ),
    click.Option(["--host"], default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.Option(
        ["--port"],
        default=DEFAULT_PORT,
        show_default=True,
        type=click.IntRange(0, 65535),
        help="Port to listen on; 0 = any free one.",
    ),
]

sim = click.Command(
    "sim",
    callback=_sim,
    params=[*_OWN_OPTIONS, *(_option(row) for row in OPTIONS if row.flag is not None)],
    help="Start simulated model servers: real timing and real overload, no GPU.\n\n"
    "The engine is a continuous-batching one on modelled hardware; see "
    "docs/explanation/simulated-engine.md.",
)
command = sim
"""The same command under the name that embedders import."""
