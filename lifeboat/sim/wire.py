"""Response bytes: JSON bodies and event streams, with or without a fault.

A stream that has to break never ends cleanly: `Broken` means the connection is closed already.
"""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from lifeboat.sim.faults import Fault, FaultMode, close, injected_error, reset
from lifeboat.sim.shapes import DONE, data_frame

_EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Broken(Exception):
    """A fault ended the answer early; nothing more may be written."""


def json_response(payload: Any, status: int = 200) -> web.Response:
    """Return a JSON response."""
    return web.Response(
        body=orjson.dumps(payload), status=status, content_type="application/json", charset="utf-8"
    )


async def send_whole(
    request: web.Request, payload: dict[str, Any] | list[Any], fault: Fault | None
) -> web.StreamResponse:
    """Send an answer that is one JSON body."""
    mode = None if fault is None else fault.mode
    if fault is None or mode in (FaultMode.NO_DONE, FaultMode.NO_USAGE, FaultMode.SLOW_HEADERS):
        return json_response(payload)
    if mode is FaultMode.ERROR_IN_SSE:
        return json_response(injected_error())
    body = orjson.dumps(payload)
    response = web.StreamResponse(
        headers={"Content-Type": "application/json", "Content-Length": str(len(body))}
    )
    half = len(body) // 2
    if mode is FaultMode.RESET and not fault.after_chunks:
        await fault.pause()
        reset(request)
        return response
    await response.prepare(request)
    await response.write(body[:half])
    await fault.pause()
    if mode is FaultMode.STALL:
        await response.write(body[half:])
    elif mode is FaultMode.RESET:
        reset(request)
    else:
        close(request)
    return response


class EventStream:
    """A response of server-sent events."""

    def __init__(self, request: web.Request, fault: Fault | None) -> None:
        self.response = web.StreamResponse(headers=_EVENT_STREAM)
        self._request = request
        self._fault = fault if fault is not None and fault.mode in _IN_STREAM else None
        self._frames = 0

    async def begin(self) -> None:
        """Send the head."""
        fault = self._fault
        if fault is not None and fault.mode is FaultMode.RESET and not fault.after_chunks:
            await fault.pause()
            reset(self._request)
            raise Broken
        await self.response.prepare(self._request)

    async def send(self, frames: list[bytes]) -> None:
        """Write frames together; raises Broken when a fault ended the answer."""
        fault = self._fault
        if fault is None:
            await self.response.write(b"".join(frames))
            return
        for frame in frames:
            if self._frames == fault.after_chunks:
                await self._act(fault, frame)
            self._frames += 1
            await self.response.write(frame)

    async def _act(self, fault: Fault, frame: bytes) -> None:
        if fault.mode is FaultMode.CUT_MID_FRAME:
            await self.response.write(frame[: len(frame) // 2])
        await fault.pause()
        match fault.mode:
            case FaultMode.STALL:
                return
            case FaultMode.ERROR_IN_SSE:
                await self.response.write(data_frame(injected_error()) + DONE)
            case FaultMode.RESET:
                reset(self._request)
            case _:
                close(self._request)
        raise Broken


_IN_STREAM = frozenset(
    {
        FaultMode.CUT_BETWEEN_FRAMES,
        FaultMode.CUT_MID_FRAME,
        FaultMode.RESET,
        FaultMode.STALL,
        FaultMode.ERROR_IN_SSE,
    }
)
