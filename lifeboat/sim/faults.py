"""Fault injection: what the `x-sim-fault: MODE[;after_chunks=N][;delay_ms=N]` header asks for.

Obeyed only where faults are enabled. `MODES` is the table that docs and tests read.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum

from aiohttp import web

from lifeboat.sim.driver import Saturated
from lifeboat.sim.refusal import Refused, envelope, invalid, saturated

HEADER = "x-sim-fault"


class FaultMode(StrEnum):
    """One way in which a server can misbehave."""

    CUT_BETWEEN_FRAMES = "cut_between_frames"
    CUT_MID_FRAME = "cut_mid_frame"
    RESET = "reset"
    STALL = "stall"
    ERROR_ENVELOPE_200 = "error_envelope_200"
    ERROR_IN_SSE = "error_in_sse"
    NO_DONE = "no_done"
    NO_USAGE = "no_usage"
    SLOW_HEADERS = "slow_headers"
    HTTP_500 = "http_500"
    HTTP_503 = "http_503"
    HTTP_529 = "http_529"


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One row of the table. after_chunks, delay_ms: the defaults; None where it has no meaning."""

    mode: FaultMode
    does: str
    after_chunks: int | None = None
    delay_ms: int | None = None


FAULTS: dict[FaultMode, FaultRow] = {
    row.mode: row
    for row in (
        FaultRow(
            FaultMode.CUT_BETWEEN_FRAMES,
            "closes the connection after some frames, without the end of the body; a plain answer"
            " stops in the middle",
            after_chunks=1,
            delay_ms=0,
        ),
        FaultRow(
            FaultMode.CUT_MID_FRAME,
            "the same, in the middle of the next frame",
            after_chunks=1,
            delay_ms=0,
        ),
        FaultRow(
            FaultMode.RESET,
            "resets the connection (RST); by default before any byte of the answer",
            after_chunks=0,
            delay_ms=0,
        ),
        FaultRow(
            FaultMode.STALL,
            "goes silent after some frames with the connection open; with delay_ms it goes on then",
            after_chunks=1,
            delay_ms=0,
        ),
        FaultRow(FaultMode.ERROR_ENVELOPE_200, "answers 200 with an error envelope as JSON"),
        FaultRow(
            FaultMode.ERROR_IN_SSE,
            "sends an error as an event after some frames, then [DONE]; a plain answer is the error"
            " envelope with 200",
            after_chunks=1,
            delay_ms=0,
        ),
        FaultRow(FaultMode.NO_DONE, "leaves out the last event of a stream"),
        FaultRow(FaultMode.NO_USAGE, "leaves out the usage figures"),
        FaultRow(FaultMode.SLOW_HEADERS, "sends the response head late", delay_ms=1000),
        FaultRow(FaultMode.HTTP_500, "answers 500 without touching the engine", delay_ms=0),
        FaultRow(FaultMode.HTTP_503, "answers 503 without touching the engine", delay_ms=0),
        FaultRow(FaultMode.HTTP_529, "answers the saturation 529, however idle", delay_ms=0),
    )
}
"""Every mode, in the order of the docs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A parsed header. after_chunks: frames that still go out whole. delay_ms: before it acts."""

    mode: FaultMode
    after_chunks: int = 0
    delay_ms: int = 0

    async def pause(self) -> None:
        """Wait before the fault acts; a stall without a delay lasts until the client leaves."""
        if self.mode is FaultMode.STALL and not self.delay_ms:
            await asyncio.Event().wait()
        await asyncio.sleep(self.delay_ms / 1000)

    async def before_head(self) -> None:
        """Answer what needs no engine (raises Refused), after the delay; pass otherwise."""
        match self.mode:
            case FaultMode.HTTP_500:
                await self.pause()
                raise Refused(500, injected_error())
            case FaultMode.HTTP_503:
                await self.pause()
                raise Refused(503, envelope("Service unavailable.", "server_error", 503))
            case FaultMode.HTTP_529:
                await self.pause()
                raise saturated(Saturated(0, 0))
            case FaultMode.ERROR_ENVELOPE_200:
                raise Refused(200, injected_error())
            case _:
                return


def parse_fault(header: str) -> Fault:
    """Return the fault that the header asks for; raises Refused (400) naming what is wrong."""
    name, *options = (part.strip() for part in header.split(";"))
    try:
        row = FAULTS[FaultMode(name)]
    except ValueError:
        raise invalid(f"{HEADER}: unknown mode {name!r}: use one of {', '.join(FAULTS)}") from None
    figures = {"after_chunks": row.after_chunks or 0, "delay_ms": row.delay_ms or 0}
    for option in options:
        key, _, value = option.partition("=")
        if key not in figures or not value.isascii() or not value.isdigit():
            raise invalid(f"{HEADER}: {option!r} is not after_chunks=N or delay_ms=N")
        figures[key] = int(value)
    return Fault(row.mode, figures["after_chunks"], figures["delay_ms"])


def injected_error() -> dict[str, object]:
    """The envelope of a fault, as a body or as an event."""
    return envelope("Injected fault.", "server_error", "injected_fault")


def close(request: web.BaseRequest) -> None:
    """Close the connection once what was written has left, without an end of the body."""
    if request.transport is not None:
        request.transport.close()


def reset(request: web.BaseRequest) -> None:
    """Reset the connection: the client sees RST, whatever was buffered is dropped."""
    transport = request.transport
    if transport is None:
        return
    own = transport.get_extra_info("socket")
    # A duplicate shares the kernel's socket; uvloop's own object does not take options.
    with socket.socket(fileno=os.dup(own.fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
