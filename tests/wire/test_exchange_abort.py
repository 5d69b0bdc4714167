"""An aborted connection is seen closed before anything that is sent after it."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from lifeboat.wire.exchange import abort_now


async def _two_connections() -> tuple[bytes, bytes]:
    """Abort one, send on the other in the same turn; return what the peers saw by then."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends: list[tuple[asyncio.Transport, socket.socket]] = []
        for _ in range(2):
            address = listener.getsockname()
            transport, _protocol = await loop.create_connection(asyncio.Protocol, *address)
            ends.append((transport, listener.accept()[0]))
    (first, peer), (second, other_peer) = ends
    with peer, other_peer:
        peer.settimeout(5.0)
        abort_now(first)
        second.write(b"next")
        other_peer.settimeout(5.0)
        # No await: the loop has not turned.
        seen = other_peer.recv(10), peer.recv(10)
        second.abort()
        await asyncio.sleep(0.01)
        return seen


def test_the_peer_sees_the_end_in_the_same_turn_of_the_loop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_two_connections()) == (b"next", b"")
