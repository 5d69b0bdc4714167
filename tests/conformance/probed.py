"""Engines whose answers to the router's own questions are scripted, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.conformance.lanes import Engine, Script, read_body, says_hello
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

    async def _serve(self, peer: Peer) -> None:
        while not peer.writer.is_closing():
            received = await peer.head()
            if not received.values(b"x-request-id"):
                self.probes.append(received)
                await self.probe(peer, received)
                continue
            await read_body(peer, received)
            self.asked.append(received)
            self.running += 1
            try:
                await self._answer(peer, received)
            finally:
                self.running -= 1


async def hangs(peer: Peer, asked: Received) -> None:
    """Answer no probe, until the router gives up."""
    await peer.watch()


def says(response: bytes) -> Probe:
    """Return a probe's script that always says this."""

    async def script(peer: Peer, asked: Received) -> None:
        await peer.send(response)

    return script
