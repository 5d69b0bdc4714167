"""Undoing a request's Content-Encoding, within bounds: for routing only, never for forwarding.

A compressed body reaches its backend as it came. What is decoded here is cut off at the body
limit before the memory is taken, and comes in slices that let the event loop live. Held by
tests/intake/test_decoding.py.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import Protocol

from lifeboat.edge.faults import BodyTooLargeError, CompressedBodyError, UnsupportedEncodingError
from lifeboat.edge.slices import YieldNow, last_of

_SLICE_IN_BYTES = 16_384
_SLICE_OUT_BYTES = 262_144
"""Inflated at once: half a millisecond."""
_MAX_LAYERS = 2
_ZSTD_WINDOW_LOG = 23
"""8 MiB, RFC 8878, section 3.1.1.1.2: the window every decoder takes; more is memory for the
asking."""

ENCODINGS = ("gzip", "deflate", "zstd")
"""What is understood (x-gzip is gzip); clients use these for requests, and none other."""


class _Inflater(Protocol):
    """A decompressor that yields bounded pieces; `finished` at the stream's own end."""

    def pieces(self, body: bytes) -> Iterator[bytes]: ...


class _Zlib:
    """gzip (RFC 1952, members one after another), deflate (RFC 9110: zlib; bare in practice)."""

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding == "gzip"

    def pieces(self, body: bytes) -> Iterator[bytes]:
        window_bits = 31 if self._gzip else 15
        if not self._gzip and not _has_zlib_head(body):
            window_bits = -15  # some clients send the bare stream
        at = 0
        while at < len(body):
            inflater = zlib.decompressobj(window_bits)
            while not inflater.eof:
                pending = inflater.unconsumed_tail
                if not pending:
                    pending = body[at : at + _SLICE_IN_BYTES]
                    at += len(pending)
                    if not pending:
                        raise CompressedBodyError("the compressed body ends early: send all of it")
                yield inflater.decompress(pending, _SLICE_OUT_BYTES)
            at -= len(inflater.unused_data)
            if not self._gzip:
                break


def _has_zlib_head(body: bytes) -> bool:
    """RFC 1950, section 2.2: method 8, and the first two bytes divide by 31."""
    return len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0


class _Zstd:
    """zstd (RFC 8878), frames one after another."""

    def pieces(self, body: bytes) -> Iterator[bytes]:
        # Imported here: few requests need it.
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd

        limits: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        at = 0
        try:
            while at < len(body):
                inflater = zstd.ZstdDecompressor(options=limits)
                while not inflater.eof:
                    pending = b""
                    if inflater.needs_input:
                        pending = body[at : at + _SLICE_IN_BYTES]
                        at += len(pending)
                        if not pending:
                            raise CompressedBodyError(
                                "the compressed body ends early: send all of it"
                            )
                    yield inflater.decompress(pending, _SLICE_OUT_BYTES)
                at -= len(inflater.unused_data)
        except zstd.ZstdError as fault:
            raise CompressedBodyError(f"the body is not zstd as its header says: {fault}") from None


def _inflater(encoding: str) -> _Inflater:
    match encoding:
        case "gzip" | "deflate":
            return _Zlib(encoding)
        case "zstd":
            return _Zstd()
        case _:
            raise UnsupportedEncodingError(
                f"content-encoding {encoding!r} is not understood: send the body plain, or as "
                + ", ".join(ENCODINGS)
            )


async def decode_body(body: bytes, encoding: str, limit: int, *, yield_now: YieldNow) -> bytes:
    """Return the body with its Content-Encoding undone.

    encoding: the header's value, one or two codings in the order they were applied. limit: bytes
    that the decoded body may have. Raises CompressedBodyError (not what the header says,
    cut short), UnsupportedEncodingError, BodyTooLargeError.
    """
    named = [name.strip().lower() for name in encoding.split(",")]
    layers = [{"x-gzip": "gzip"}.get(name, name) for name in named if name not in ("", "identity")]
    if len(layers) > _MAX_LAYERS:
        raise UnsupportedEncodingError(
            f"content-encoding names {len(layers)} codings: send at most {_MAX_LAYERS}"
        )
    for layer in reversed(layers):
        body = await last_of(_inflate(body, layer, limit), yield_now) or b""
    return body


def _inflate(body: bytes, encoding: str, limit: int) -> Iterator[bytes | None]:
    """None at each pause, and last the decoded body."""
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in _inflater(encoding).pieces(body):
            size += len(piece)
            if size > limit:
                raise BodyTooLargeError(
                    f"the body is over {limit:,} bytes once decoded: send a smaller one, or raise "
                    "LIFEBOAT_MAX_BODY_BYTES"
                )
            pieces.append(piece)
            yield None
    except zlib.error as fault:
        raise CompressedBodyError(
            f"the body is not {encoding} as its header says: {fault}"
        ) from None
    yield b"".join(pieces)
