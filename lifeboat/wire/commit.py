"""Looking at the first bytes of an answer before its head is committed to the client.

Two cases only (contract, sections 5 and 6): an error answer whose meaning decides where the request
goes next, and the first event of a vLLM stream, which may be a refusal in a 200's clothes. What was
read is handed to the relay as `first`: bytes out = bytes in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lifeboat.core.answers import first_event_end, is_overload_event
from lifeboat.wire.upstream import Answer, UpstreamError

FIRST_EVENT_WAIT_S = 0.25
FIRST_EVENT_BYTES = 64 * 1024
"""The contract's bounds of how long the head of a vLLM stream may wait for its first event."""
ERROR_BODY_WAIT_S = 1.0
ERROR_BODY_BYTES = 64 * 1024
"""An error body that says why is short and comes with its head."""


async def first_event(
    answer: Answer,
    *,
    most_bytes: int = FIRST_EVENT_BYTES,
    most_s: float = FIRST_EVENT_WAIT_S,
) -> tuple[bytes, bool]:
    """Read to the end of the first event; return the bytes and whether it is an overload error.

    Comment lines are no event. A cut of the stream is left for the relay to meet: the bytes before
    it were answered, so the request is never sent again.
    """

    def enough(start: bytearray) -> bool:
        return first_event_end(start) is not None

    start = await _read_start(answer, most_bytes, most_s, enough)
    return start, is_overload_event(start)


async def error_body(
    answer: Answer, *, most_bytes: int = ERROR_BODY_BYTES, most_s: float = ERROR_BODY_WAIT_S
) -> bytes:
    """Return the start of an error answer's body, for `core.answers.classify`."""
    return await _read_start(answer, most_bytes, most_s, lambda start: False)


async def _read_start(
    answer: Answer, most_bytes: int, most_s: float, enough: Callable[[bytearray], bool]
) -> bytes:
    start = bytearray()
    try:
        async with asyncio.timeout(most_s):
            while len(start) < most_bytes and not enough(start):
                piece = await answer.read()
                if not piece:
                    break
                start += piece
    except (TimeoutError, UpstreamError):
        # Slow: commit what came. Cut: the error comes again when the relay reads on.
        pass
    return bytes(start)
