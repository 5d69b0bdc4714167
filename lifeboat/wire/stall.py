"""Cutting off a client that takes no bytes.

A slow client is welcome, a stuck one is not: progress is any byte that left our buffer or was
acknowledged by the client's kernel, so that a client which reads a little now and then is never
cut, whatever the size of the kernel's buffers. Held by tests/wire/test_relay.py and test_stall.py.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from types import TracebackType

_SIOCOUTQ = 0x5411
"""Linux: bytes in the kernel's send queue that the peer has not acknowledged (tcp(7))."""
CHECKS_PER_TIMEOUT = 4
"""A stuck client is seen at most a quarter of the timeout late."""


class StallWatch:
    """While entered, aborts the transport once the client took nothing for timeout_s.

    A callback, not a cancelled wait: cancelling aiohttp's drain would poison its waiter for the
    next one. fired: it did abort. until_taken: it ends by itself once nothing waits any more.
    """

    __slots__ = (
        "_loop",
        "_since",
        "_timeout_s",
        "_timer",
        "_transport",
        "_unsent",
        "_until_taken",
        "fired",
    )

    def __init__(
        self, transport: asyncio.Transport | None, timeout_s: float, *, until_taken: bool = False
    ) -> None:
        self.fired = False
        self._until_taken = until_taken
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._unsent = (0, 0)

    def __enter__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Watch without a block."""
        self._since = self._loop.time()
        self._unsent = self._measure()
        self._arm()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s / CHECKS_PER_TIMEOUT, self._check)

    def _check(self) -> None:
        transport = self._transport
        if transport is None or not self._goes_on(transport):
            self._timer = None
            return
        unsent = self._measure()
        now = self._loop.time()
        if unsent != self._unsent:
            self._unsent, self._since = unsent, now
        elif now - self._since >= self._timeout_s:
            self.fired = True
            self._timer = None
            transport.abort()
            return
        self._arm()

    def _goes_on(self, transport: asyncio.Transport) -> bool:
        if transport.get_write_buffer_size():
            return True
        return not (self._until_taken or transport.is_closing())

    @property
    def is_on(self) -> bool:
        """It watches now."""
        return self._timer is not None

    def _measure(self) -> tuple[int, int]:
        """Bytes that wait in our buffer, and in the kernel's."""
        if self._transport is None:
            return 0, 0
        return self._transport.get_write_buffer_size(), _kernel_unsent(self._transport)


def close_in_time(transport: asyncio.Transport, timeout_s: float) -> None:
    """Close a transport behind what waits to be sent; at once if nothing of it is taken so long."""
    transport.close()
    if transport.get_write_buffer_size():
        StallWatch(transport, timeout_s, until_taken=True).begin()


def _kernel_unsent(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    if sock is None or not sys.platform.startswith("linux"):
        return 0
    # Linux only, so not at the top of the module.
    import fcntl

    try:
        answer = fcntl.ioctl(sock.fileno(), _SIOCOUTQ, struct.pack("i", 0))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])
