"""Listening sockets that can be closed without resetting anybody.

Closing a listening socket resets the clients whose connections the kernel has already completed but
nobody has accepted yet. So the last act of a listener is to accept all of those, in the same step
in which it closes; they are then answered like any other. Held by
tests/conformance/test_shutdown.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable

BACKLOG = 4096
"""Connections the kernel may hold until they are accepted: a burst must not see refusals."""

MOST_UNSENT_BYTES = 128 * 1024
"""Of an answer that the kernel takes for a client that does not read, beyond what is under way.
Left to itself it takes three megabytes for each, which count as ours where memory is limited (a
container). Linux has the option, and accepted connections inherit it. Held by
tests/edge/test_listener.py; what it saves is in bench/RESULTS.md.
"""

_PORT_FAULTS = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Another port would do; of anything else the address is at fault."""


def cannot_listen(host: str, port: int, error: OSError, host_knob: str, port_knob: str) -> str:
    """Return what kept from listening there, and what to change: once, without the socket's words.

    host_knob, port_knob: what sets the address and the port, as an operator writes it.
    """
    number = error.errno
    # Those of a name that cannot be resolved are negative.
    why = os.strerror(number) if number is not None and number > 0 else error.strerror or str(error)
    if number in _PORT_FAULTS:
        remedy = f"Choose another port ({port_knob}), or end what listens there"
        if number == errno.EACCES:
            remedy = f"Choose a port from 1024 ({port_knob}), or allow this one"
    else:
        remedy = f"Name an address of this machine ({host_knob})"
    return f"cannot listen on {host}:{port}: {why}. {remedy}"


ProtocolFactory = Callable[[], asyncio.Protocol]


class Listener:
    """One address to listen on, which may be several sockets (IPv4 and IPv6 of a name)."""

    def __init__(self, protocol_factory: ProtocolFactory) -> None:
        self._factory = protocol_factory
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []

    async def open(self, host: str, port: int) -> list[str]:
        """Listen, and return the urls. port: 0 = any free one. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            # The second family of a name takes the port that the first was given.
            bound = (address[0], self._port() or port, *address[2:])
            sock = socket.create_server(bound, family=family, backlog=BACKLOG)
            sock.setblocking(False)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
            self._sockets.append(sock)
            server = await loop.create_server(self._factory, sock=sock, backlog=BACKLOG)
            self._servers.append(server)
        return [_url(sock.getsockname()) for sock in self._sockets]

    def _port(self) -> int:
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    async def close(self) -> list[asyncio.BaseTransport]:
        """Accept what the kernel holds, stop listening, and return the connections accepted last.

        They are in the protocol's hands: give them a moment to be answered.
        """
        accepted: list[socket.socket] = []
        for sock in self._sockets:
            accepted += _accept_all(sock)
        for server in self._servers:
            server.close()
        loop = asyncio.get_running_loop()
        transports: list[asyncio.BaseTransport] = []
        for connection in accepted:
            transport, _ = await loop.connect_accepted_socket(self._factory, connection)
            transports.append(transport)
        self._sockets.clear()
        self._servers.clear()
        return transports


def _accept_all(sock: socket.socket) -> list[socket.socket]:
    accepted: list[socket.socket] = []
    while True:
        try:
            connection, _ = sock.accept()
        except OSError:
            # Nothing more is queued (BlockingIOError), or descriptors are used up.
            return accepted
        connection.setblocking(False)
        accepted.append(connection)


def _url(address: tuple[object, ...]) -> str:
    host, port = str(address[0]), address[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
