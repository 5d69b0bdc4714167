"""The process that `lifeboat serve` is: its log, its signals, what it says at the start.

SIGTERM and SIGINT drain, a second one ends at once; SIGHUP reads the configuration again. Held by
tests/conformance/test_shutdown.py and test_config_reload.py over real processes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable

import click
import orjson

from lifeboat import __version__
from lifeboat.edge.descriptors import raise_soft_limit
from lifeboat.observe.log_pipe import configure_logging
from lifeboat.runtime import Router, StartError
from lifeboat.settings.shapes import Configuration

_log = logging.getLogger("lifeboat")

ECHO_S = 0.1
"""uvloop tells of one signal twice when it comes while another is being told of (it reads a pipe
and a set, one after the other); nobody sends a second one as soon as this."""


def serve(configuration: Configuration, reload: Callable[[], Configuration]) -> int:
    """Run a router until a signal ends it; return the exit code of the process.

    reload: reads the configuration again as it was read at first; may raise ConfigErrors.
    """
    settings = configuration.settings
    log_pipe = configure_logging(settings.log_format, settings.log_level)
    raise_soft_limit()
    for warning in configuration.warnings:
        _log.warning("%s", warning)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve_until_signalled(configuration, reload))
    except StartError as error:
        click.echo(f"lifeboat: {error}", err=True)
        return 1
    finally:
        log_pipe.close()


class Ending:
    """The first signal drains, a later one ends at once; the echo of one signal is no other."""

    def __init__(
        self, stop: asyncio.Event, at_once: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        """stop: set to drain. at_once: called to end. clock: monotonic seconds."""
        self._stop = stop
        self._at_once = at_once
        self._clock = clock
        self._asked_at = 0.0

    def signalled(self) -> None:
        """Take a signal."""
        now = self._clock()
        if not self._stop.is_set():
            self._asked_at = now
            self._stop.set()
        elif now - self._asked_at >= ECHO_S:
            self._at_once()


async def _serve_until_signalled(
    configuration: Configuration, reload: Callable[[], Configuration]
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    router = Router(configuration, reload)
    main = asyncio.current_task()
    assert main is not None
    ending = Ending(stop, main.cancel, loop.time)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.signalled)
    loop.add_signal_handler(signal.SIGHUP, router.ask_to_reload)
    try:
        await router.run(stop, ready)
    except asyncio.CancelledError:
        return 1
    return 0


def ready(router: Router) -> None:
    """Collect garbage from now on (`lifeboat serve` starts without), and say that it is ready."""
    gc.enable()
    announce(router)


def announce(router: Router) -> None:
    """Say where the router listens and what to try, on standard output."""
    configuration = router.configuration
    address = router.addresses[0]
    view = router.view()
    lines = [f"Lifeboat {__version__} listens on {address}"]
    lines += [f"  operators: {admin}" for admin in router.admin_addresses]
    queue = "on" if view.queue_enabled else "off"
    lines.append(f"  mode {view.mode.value}, queue {queue}")
    if configuration.simulated_by_default:
        lines.append("  nothing is configured: two embedded simulated backends stand in")
    for name, member in router.fleet.members().items():
        lines.append(f"  backend {name} ({member.kind.value}) at {member.url}")
    model = next((entry.id for entry in router.fleet.listing()), None)
    if model is not None:
        body = orjson.dumps(
            {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16}
        ).decode()
        lines.append("Try:")
        lines.append(
            f"  curl -i {address}/v1/chat/completions -H 'Content-Type: application/json' "
            f"-d '{body}'"
        )
    lines.append(f"  curl {(router.admin_addresses or [address])[0]}/api/lb/state")
    click.echo("\n".join(lines))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        # Not made for Windows; asyncio's own loop serves there.
        return asyncio.new_event_loop
    return uvloop.new_event_loop
