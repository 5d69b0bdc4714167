"""The simulated engines that run inside the router: started when wanted, stopped when empty.

How one is started is the runtime's to say; here is only which ones there are.
Held by tests/fleet/test_reload.py.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from lifeboat.fleet.changes import INVALID, FleetError
from lifeboat.settings.shapes import BackendConfig

log = logging.getLogger(__name__)


class EngineRoom:
    """Running embedded engines, by url. start: returns the url of a new one; stop: ends one."""

    def __init__(
        self,
        start: Callable[[BackendConfig], Awaitable[str]],
        stop: Callable[[str], Awaitable[None]],
    ) -> None:
        self._start = start
        self._stop = stop
        self._running: dict[str, BackendConfig] = {}
        self._retired: dict[str, str] = {}

    async def start(self, config: BackendConfig) -> str:
        """Return the url of a new engine. Raises FleetError (400) where it cannot start."""
        try:
            url = await self._start(config)
        except (OSError, ValueError) as error:
            raise FleetError(
                INVALID, f"the embedded engine of {config.name!r} cannot start: {error}"
            ) from error
        self._running[url] = config
        return url

    def retire(self, name: str, url: str) -> None:
        """Mark an engine as no longer wanted; `sweep` stops it once its backend is empty."""
        if url in self._running:
            self._retired[url] = name

    async def sweep(self, busy: Callable[[str], bool]) -> None:
        """Stop the retired engines whose backend holds no requests any more."""
        for url, name in list(self._retired.items()):
            if not busy(name):
                await self.stop(url)

    async def stop(self, url: str) -> None:
        """Stop one engine; a fault of it is logged."""
        self._retired.pop(url, None)
        if self._running.pop(url, None) is None:
            return
        try:
            await self._stop(url)
        except Exception:
            log.exception("stopping the embedded engine at %s failed", url)

    async def close(self) -> None:
        """Stop all of them."""
        for url in list(self._running):
            await self.stop(url)
