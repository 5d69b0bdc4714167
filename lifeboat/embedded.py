"""Simulated engines that run inside the router: what `kind: simulated` without a url means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lifeboat.settings.shapes import BackendConfig

if TYPE_CHECKING:
    from lifeboat.sim.config import EngineConfig
    from lifeboat.sim.server import SimulatedServer


def engine_of(config: BackendConfig) -> EngineConfig:
    """Return the engine that an embedded backend means. Raises sim.config.ConfigError."""
    from lifeboat.sim.config import EngineConfig

    options: dict[str, object] = {
        **config.simulate,
        "serves": sorted(can.value for can in config.serves),
    }
    if config.models:
        # One engine under all its names, as with adapters over one base model.
        options["served_name"] = list(config.models)
    return EngineConfig.from_mapping(options)


class Embedded:
    """The simulated engines that run inside the router, by url."""

    def __init__(self) -> None:
        self._servers: dict[str, SimulatedServer] = {}

    async def start(self, config: BackendConfig) -> str:
        """Start the engine of one backend on a free loopback port."""
        # Imported here: a router without embedded engines needs none of it.
        from lifeboat.sim.server import SimulatedServer

        server = SimulatedServer([engine_of(config)])
        url = await server.start(host="127.0.0.1", port=0)
        self._servers[url] = server
        return url

    async def stop(self, url: str) -> None:
        """Stop the engines behind a url; does nothing for one that is not ours."""
        server = self._servers.pop(url, None)
        if server is not None:
            await server.close()

    async def close(self) -> None:
        """Stop all."""
        for url in list(self._servers):
            await self.stop(url)
