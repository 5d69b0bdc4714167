"""Reloading the configuration: on a signal, and when its file has changed.

A configuration that cannot be read or put in force changes nothing; why is in the log, in the
fleet's warnings and in `failures`. Held by tests/fleet/test_reload.py. Source: BUG-195.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from lifeboat.fleet.changes import FleetError
from lifeboat.fleet.fleet import Fleet
from lifeboat.settings.problems import ConfigErrors
from lifeboat.settings.shapes import Configuration

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How often the file is looked at: a `stat` costs microseconds."""

WRITING_S = 0.05
MOST_READS = 5
"""A file that is being written is read again after a moment, so often at the most."""

Signature = tuple[int, int, int]


class Reloader:
    """Reads the configuration again when asked or when its file changed, and hands it over.

    Make it as soon as the configuration is read: the file as it is then is what counts as read.
    read: as at the start, with the same flags and environment; may raise ConfigErrors. applied:
    told of each configuration that is now in force. reloads, failures: how often each happened.
    """

    def __init__(
        self,
        fleet: Fleet,
        read: Callable[[], Configuration],
        applied: Callable[[Configuration], None] = lambda configuration: None,
        poll_s: float = POLL_S,
    ) -> None:
        self._fleet = fleet
        self._read = read
        self._applied = applied
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self._path = fleet.configuration.path
        self._loaded = _signature(self._path)
        self.reloads = 0
        self.failures = 0

    def ask(self) -> None:
        """Have `watch` reload at once: for a signal handler."""
        self._asked.set()

    async def watch(self) -> None:
        """Reload whenever asked, or when the file has changed and then stayed as it is for a poll.

        Runs until cancelled.
        """
        seen = self._loaded
        while True:
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            now = _signature(self._path)
            settled = now is not None and now == seen and now != self._loaded
            seen = now
            if asked or settled:
                self._loaded = now
                await self.reload()

    async def reload(self) -> bool:
        """Read the configuration and put it in force; return whether that was done."""
        try:
            configuration = await self._read_whole()
            fault = self._file_fault(configuration)
            if fault is not None:
                return self._refuse(fault)
            await self._fleet.reload(configuration)
        except (ConfigErrors, FleetError) as error:
            return self._refuse(str(error))
        except Exception as error:
            log.exception("reloading the configuration failed")
            return self._refuse(f"{type(error).__name__}: {error}")
        self.reloads += 1
        self._fleet.reload_fault = None
        for warning in configuration.warnings:
            log.warning("%s", warning)
        log.info("configuration reloaded: %d backends", len(configuration.backends))
        self._applied(configuration)
        return True

    async def _read_whole(self) -> Configuration:
        """Read the configuration; again when its file changed meanwhile: it is being written."""
        path = self._fleet.configuration.path
        for _ in range(MOST_READS - 1):
            before = _signature(path)
            try:
                configuration = await asyncio.to_thread(self._read)
            except ConfigErrors:
                if _signature(path) == before:
                    raise
            else:
                if _signature(path) == before:
                    return configuration
            await asyncio.sleep(WRITING_S)
        return await asyncio.to_thread(self._read)

    def _file_fault(self, configuration: Configuration) -> str | None:
        """Return why a file that was there before is none now: every backend would leave."""
        earlier = self._fleet.configuration.path
        if earlier is None:
            return None
        if configuration.path is None:
            return f"the file {earlier} is gone"
        signature = _signature(configuration.path)
        if signature is None or signature[1] == 0:
            return f"the file {configuration.path} is empty; write `backends: []` if that is meant"
        return None

    def _refuse(self, why: str) -> bool:
        self.failures += 1
        text = "; ".join(why.splitlines())
        self._fleet.reload_fault = (
            f"the configuration was not reloaded, the earlier one stays in force: {text}"
        )
        log.error("%s", self._fleet.reload_fault)
        return False


def _signature(path: Path | None) -> Signature | None:
    """Return what changes with a file's contents, None while there is none."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
