"""What the kernel holds for a client that does not read, and what keeps from listening.

How a listener ends is in test_shutdown.py.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import cast

import pytest

from lifeboat.edge.listener import MOST_UNSENT_BYTES, Listener, cannot_listen
from tests.peers import RawClient

ANSWER_BYTES = 16 << 20


class Floods(asyncio.Protocol):
    """Writes all of a large answer at once."""

    def __init__(self, accepted: asyncio.Future[asyncio.Transport]) -> None:
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        written = cast("asyncio.Transport", transport)
        written.write(b"x" * ANSWER_BYTES)
        self._accepted.set_result(written)


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such bound")
async def test_the_kernel_takes_little_of_an_answer_that_is_not_read() -> None:
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
    listener = Listener(lambda: Floods(accepted))
    (url,) = await listener.open("127.0.0.1", 0)
    client = await RawClient.connect(int(url.rpartition(":")[2]), receive_buffer=4096)
    client.writer.transport.pause_reading()
    transport = await accepted
    at, still = -1, 0
    while still < 5:
        await asyncio.sleep(0.05)
        taken = ANSWER_BYTES - transport.get_write_buffer_size()
        still = still + 1 if taken == at else 0
        at = taken
    # What is under way to the client, and one write's worth, come on top.
    assert 0 < taken < 4 * MOST_UNSENT_BYTES
    client.reset()
    transport.abort()
    await listener.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use (while ... ('h', 80))"),
         "Address already in use. Choose another port (P), or end what listens there"),
        (OSError(errno.EACCES, "x"), "Permission denied. Choose a port from 1024 (P), or allow"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "Name an address of this machine (H)"),
        (socket.gaierror(-2, "Name or service not known"),
         "Name or service not known. Name an address of this machine (H)"),
    ],
)  # fmt: skip
def test_what_keeps_from_listening_is_said_once_with_its_remedy(error: OSError, said: str) -> None:
    found = cannot_listen("h", 80, error, "H", "P")
    assert found.startswith("cannot listen on h:80: ")
    assert said in found
    assert "('h', 80)" not in found
