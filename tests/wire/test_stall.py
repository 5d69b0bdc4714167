"""Closing behind what waits: a slow client gets all of it, a stuck one is not waited for."""

from __future__ import annotations

import asyncio

import pytest

from lifeboat.wire.stall import close_in_time
from tests.peers import RawClient, until

MANY = 8 << 20
"""Bytes: more than the kernel takes for a client that does not read."""


class Sends(asyncio.Protocol):
    """Sends MANY bytes to a client and closes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_closed = False
        self.timeout_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.write(b"a" * MANY)
        assert transport.get_write_buffer_size() > 0
        close_in_time(transport, self.timeout_s)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True


@pytest.fixture
async def sends():
    protocol = Sends()
    server = await asyncio.get_running_loop().create_server(lambda: protocol, "127.0.0.1", 0)
    protocol.port = server.sockets[0].getsockname()[1]
    yield protocol
    server.close()
    if not protocol.is_closed:
        protocol.transport.abort()


async def test_a_client_that_takes_nothing_is_not_waited_for(sends) -> None:
    sends.timeout_s = 0.2
    client = await RawClient.connect(sends.port, receive_buffer=4096)
    client.reader._transport.pause_reading()
    await until(lambda: sends.is_closed)
    client.close()


async def test_a_client_that_begins_to_take_it_late_gets_all_of_it(sends) -> None:
    sends.timeout_s = 10.0
    client = await RawClient.connect(sends.port)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(30):
        assert len(await client.reader.read(-1)) == MANY
    await until(lambda: sends.is_closed)
    client.close()
