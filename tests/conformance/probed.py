"""Engines whose answers to the router's own questions are scripted, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.conformance.lanes import Engine, Script, says_hello
from tests.peers import Peer, Received

Probe = Callable[[Peer, Received], Awaitable[None]]

FAST = {
    "LIFEBOAT_PROBE_INTERVAL_SEC": "0.05",
    "LIFEBOAT_PROBE_MODELS_INTERVAL_SEC": "0.05",
    "LIFEBOAT_PROBE_TIMEOUT_SEC": "0.1",
}
"""Probes at a pace that a test can wait for: three that fail take about half a second."""


class Probed(Engine):
    """An engine with a script for probes (any request of the router's own), and one for clients."""

    def __init__(self, probe: Probe, script: Script = says_hello) -> None:
        super().__init__(script)
        self.probe = probe

    async def answer_probe(self, peer: Peer, received: Received) -> None:
        await self.probe(peer, received)


async def hangs(peer: Peer, asked: Received) -> None:
    """Answer no probe, until the router gives up."""
    await peer.watch()


def says(response: bytes) -> Probe:
    """Return a probe's script that always says this."""

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(response)

    return script
