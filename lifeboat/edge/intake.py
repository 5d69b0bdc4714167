"""Reading a request's body, within bounds, and learning from it what the gate must know.

The original bytes are kept and forwarded; they are parsed once. Everything that can be wrong with
a body ends in a refusal that names the value, the rule and the remedy, before any slot is taken.
Held by tests/edge/test_intake.py and the nonsense tests over sockets.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

from aiohttp import HttpVersion11

from lifeboat.core.ledger import READING, BodyLedger
from lifeboat.core.textsize import Weights
from lifeboat.core.vocabulary import Reason, Refusal
from lifeboat.core.weights import DEFAULT_WEIGHTS
from lifeboat.edge.bodyscan import AT_ONCE_BYTES, ParsedBody, parse_json
from lifeboat.edge.decoding import decode_body
from lifeboat.edge.endpoints import BodyKind
from lifeboat.edge.faults import BodyError, BodyTooLargeError
from lifeboat.edge.journey import Journey
from lifeboat.edge.multipart import parse_multipart
from lifeboat.edge.pace import PacedBody
from lifeboat.edge.slices import YieldNow

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class IntakeRules:
    """max_body_bytes: on the wire and inflated. body_timeout_s: longest silence within a body,
    and see lifeboat/edge/pace.py.

    weights: of the quick figure, fitted on the configured encoding.
    """

    max_body_bytes: int
    body_timeout_s: float
    image_tokens: int
    audio_bytes_per_token: int
    weights: Weights = DEFAULT_WEIGHTS


async def read_body(journey: Journey, rules: IntakeRules) -> bytes | Refusal:
    """Return the body's bytes as they came, charged to the ledger, or why they are not taken."""
    request, ledger = journey.request, journey.ledger
    length = request.content_length
    if length is not None and length > rules.max_body_bytes:
        return _too_large(length, rules.max_body_bytes)
    if not ledger.has_room(READING, length or 0):
        return _no_memory(ledger, length or 0)
    content = request.content
    piece = b""
    if length is not None and length <= AT_ONCE_BYTES:
        piece = content.read_nowait()
        if len(piece) == length:
            # It came with its head, as small ones do: it is charged once its pool is known.
            return piece
    if _waits_for_continue(journey):
        await request.writer.write(CONTINUE)
    paced = PacedBody(content, rules.body_timeout_s, len(piece))
    whole = BytesIO()
    read_bytes = 0
    try:
        piece = piece or await paced.next()
        while piece:
            read_bytes += len(piece)
            if read_bytes > rules.max_body_bytes:
                return _too_large(read_bytes, rules.max_body_bytes)
            # What has come is charged, not what was announced: who sends slowly holds little.
            if not ledger.has_room(READING, len(piece)):
                return _no_memory(ledger, len(piece))
            journey.hold(len(piece))
            whole.write(piece)
            piece = await paced.next()
    except BodyError as fault:
        return _invalid(fault)
    # Hands out its own memory: joining 64 MiB of pieces would keep the loop for 40 ms, and hold
    # the body twice.
    return whole.getvalue()


async def parse_body(
    journey: Journey, body: bytes, rules: IntakeRules, yield_now: YieldNow
) -> ParsedBody | Refusal:
    """Return what the body says, whatever its encoding and kind, or the 400 (or 413) for it.

    yield_now: between two slices of work, one for all who read.
    """
    facts = journey.facts
    try:
        plain = body
        encodings = facts.encodings
        if encodings and encodings != [b"identity"]:
            encoding = b", ".join(encodings).decode("latin-1")
            plain = await decode_body(body, encoding, rules.max_body_bytes, yield_now=yield_now)
        content_type = facts.content_type
        protocol = journey.endpoint.protocol
        if protocol is None:
            raise RuntimeError(f"{journey.endpoint.path} has no body to parse")
        if _is_multipart(journey.endpoint.body, content_type):
            return await parse_multipart(
                plain,
                content_type,
                protocol,
                yield_now=yield_now,
                image_tokens=rules.image_tokens,
                audio_bytes_per_token=rules.audio_bytes_per_token,
                weights=rules.weights,
            )
        return await parse_json(
            plain,
            protocol,
            yield_now=yield_now,
            image_tokens=rules.image_tokens,
            audio_bytes_per_token=rules.audio_bytes_per_token,
            weights=rules.weights,
        )
    except BodyTooLargeError as error:
        return Refusal(Reason.BODY_TOO_LARGE, str(error))
    except BodyError as error:
        return _invalid(error)


def _is_multipart(kind: BodyKind, content_type: str) -> bool:
    if kind is BodyKind.EITHER:
        return content_type.lower().lstrip().startswith("multipart/")
    return kind is BodyKind.MULTIPART


def _waits_for_continue(journey: Journey) -> bool:
    """RFC 9110, section 10.1.1: of an HTTP/1.0 client the expectation is ignored."""
    return journey.facts.awaits_continue and journey.request.version >= HttpVersion11


def _invalid(fault: BodyError) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, str(fault), advice=fault.advice)


def _too_large(size_bytes: int, bound_bytes: int) -> Refusal:
    return Refusal(
        Reason.BODY_TOO_LARGE,
        f"the request body has {size_bytes} bytes or more and LIFEBOAT_MAX_BODY_BYTES is "
        f"{bound_bytes}: send less, or raise it",
    )


def _no_memory(ledger: BodyLedger, more_bytes: int) -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL,
        f"{ledger.total_bytes} bytes of request bodies are held in memory, {more_bytes} more would "
        f"pass LIFEBOAT_LB_MAX_PARKED_BYTES ({ledger.bound_bytes}): try again later, or raise it",
    )
