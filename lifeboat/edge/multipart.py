"""Intake of multipart/form-data uploads: the model wherever its field stands, files by their bytes.

RFC 2046, section 5.1.1, read as strictly as the servers' own parsers do: a delimiter is CRLF, two
hyphens and the boundary, at the start of a line, and the line ends there but for blanks. Bytes
inside a file that only look like one, or like a `model` field, are file. A part counts once its
closing delimiter has come; a last delimiter without its two hyphens is forgiven. A body that ends
its lines with LF alone is refused, as python-multipart and cpp-httplib do. Held by
tests/intake/test_multipart.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lifeboat.core.protocol import INPUT_FIELDS, Protocol
from lifeboat.core.shape import shape_of_upload
from lifeboat.core.textsize import Weights
from lifeboat.core.weights import DEFAULT_WEIGHTS
from lifeboat.edge.bodyscan import BodyKind, ParsedBody, model_name
from lifeboat.edge.faults import UploadError
from lifeboat.edge.slices import YieldNow, last_of

MAX_PARTS = 2_000
"""Starlette, under most servers here, stops at 1,000 files and 1,000 fields."""
MAX_HEADER_BYTES = 16_384
"""Head of one part; an honest one has 200 bytes."""
MAX_TEXT_BYTES = 1_048_576
"""A text field counts toward the prompt up to here: Starlette refuses larger ones."""
_WINDOW = 1_048_576
_PAUSE_EVERY = 1_000
"""Bytes that only look like a delimiter, between two pauses: half a millisecond."""
_LINE_END = re.compile(rb"[ \t]*\r\n")
_PARAMETER = re.compile(
    r';\s*([\w!#$%&\'*+.^`|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.DOTALL
)
_DISPOSITION = re.compile(rb"(?:^|\r\n)content-disposition[ \t]*:[ \t]*([^\r\n]*)", re.IGNORECASE)
_TYPE = re.compile(rb"(?:^|\r\n)content-type[ \t]*:[ \t]*([^\r\n;]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """One complete part: its field name, whether it is a file, and where its content stands."""

    name: str
    is_file: bool
    content_type: str
    start: int
    end: int


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a Content-Type header names. Raises UploadError."""
    for name, quoted, bare in _PARAMETER.findall(content_type):
        if name.lower() != "boundary":
            continue
        boundary = re.sub(r"\\(.)", r"\1", quoted) if quoted else bare
        if 0 < len(boundary) <= 200:
            return boundary.encode("latin-1", "replace")
    raise UploadError(
        f"content-type {content_type[:200]!r} names no boundary: send multipart/form-data; "
        "boundary=..."
    )


def _delimiters(body: bytes, boundary: bytes) -> Iterator[tuple[int, int, bool] | None]:
    """Yield (start with its CRLF, end of its line, is it the closing one); None at each pause."""
    mark = b"--" + boundary
    needle = b"\r\n" + mark
    at = alike = 0
    first = body.startswith(mark)
    while at < len(body):
        if first:
            found, length, first = 0, len(mark), False
        else:
            window = min(at + _WINDOW, len(body))
            found, length = body.find(needle, at, window), len(needle)
            if found < 0:
                at = window if window == len(body) else window - len(needle) + 1
                yield None
                continue
        behind = found + length
        if body[behind : behind + 2] == b"--":
            yield found, behind + 2, True
            return
        line_end = _LINE_END.match(body, behind, behind + 256)
        if line_end is None:
            at = found + 2  # only looks like one: a longer boundary, or bytes of a file
            alike += 1
            if alike % _PAUSE_EVERY == 0:
                yield None
            continue
        # The CRLF that ends this line may begin the next delimiter.
        at = line_end.end() - 2
        yield found, line_end.end(), False


def _parts(body: bytes, boundary: bytes) -> Iterator[list[Part] | None]:
    """None at each pause, and last the complete parts. Raises UploadError."""
    parts: list[Part] = []
    begun: int | None = None
    for delimiter in _delimiters(body, boundary):
        if delimiter is None:
            yield None
            continue
        start, end, _ = delimiter
        if begun is not None:
            parts.append(_part(body, begun, max(begun, start)))
            if len(parts) > MAX_PARTS:
                raise UploadError(f"the upload has more than {MAX_PARTS:,} parts: send fewer")
            if len(parts) % 64 == 0:
                yield None
        begun = end
    if begun is None:
        raise UploadError(
            f"the upload has no line --{boundary[:80].decode('latin-1')} ended by CRLF: send the "
            "boundary that the content-type names, and CRLF line ends"
        )
    yield parts


def _part(body: bytes, start: int, end: int) -> Part:
    """Read the head of the part at [start, end)."""
    if body[start : start + 2] == b"\r\n":
        head, content = b"", start + 2
    else:
        blank = body.find(b"\r\n\r\n", start, min(end + 4, start + MAX_HEADER_BYTES))
        if blank < 0 or blank + 2 > end:
            raise UploadError(
                f"a part of the upload at byte {start} has no blank line behind its headers (in "
                f"{MAX_HEADER_BYTES:,} bytes): end lines with CRLF"
            )
        head, content = body[start:blank], min(blank + 4, end)
    disposition = _DISPOSITION.search(head)
    fields: dict[str, str] = {}
    if disposition:
        value = ";" + disposition.group(1).decode("utf-8", "replace").partition(";")[2]
        for name, quoted, bare in _PARAMETER.findall(value):
            fields.setdefault(name.lower(), quoted or bare)
    kind = _TYPE.search(head)
    return Part(
        name=fields.get("name", ""),
        is_file="filename" in fields or "filename*" in fields,
        content_type=kind.group(1).decode("latin-1").strip().lower() if kind else "",
        start=content,
        end=end,
    )


def _file_tokens(
    part: Part, protocol: Protocol, image_tokens: int, audio_bytes_per_token: int
) -> int:
    """What a file costs: audio by its bytes, an image or video the same whatever its bytes."""
    if protocol is Protocol.TRANSCRIPTION:
        return -(-(part.end - part.start) // audio_bytes_per_token)
    return image_tokens


def _text(body: bytes, part: Part) -> str:
    return body[part.start : min(part.end, part.start + MAX_TEXT_BYTES)].decode("utf-8", "replace")


async def parse_multipart(
    body: bytes,
    content_type: str,
    protocol: Protocol = Protocol.TRANSCRIPTION,
    *,
    yield_now: YieldNow,
    image_tokens: int = 2048,
    audio_bytes_per_token: int = 640,
    weights: Weights = DEFAULT_WEIGHTS,
) -> ParsedBody:
    """Parse an upload for routing. Raises UploadError.

    body: decoded. content_type: the request's header, which names the boundary. Of several `model`
    fields the last counts, as in Starlette.
    """
    found = await last_of(_parts(body, boundary_of(content_type)), yield_now) or []
    fields = [part for part in found if not part.is_file]
    files = [part for part in found if part.is_file]
    models = [part for part in fields if part.name == "model"]
    prompts = INPUT_FIELDS[protocol]
    model = model_name(_text(body, models[-1])) if models else None
    streams = [_text(body, part) for part in fields if part.name == "stream"]
    return ParsedBody(
        model=model,
        stream=bool(streams) and streams[-1].strip().lower() in ("true", "1"),
        store=None,
        shape=shape_of_upload(
            [_text(body, part) for part in fields if part.name in prompts],
            sum(part.end - part.start for part in files),
            sum(
                _file_tokens(part, protocol, image_tokens, audio_bytes_per_token) for part in files
            ),
            weights,
        ),
        body_kind=BodyKind.MULTIPART,
        plain=body,
        known_model_spans=tuple((part.start, part.end) for part in models),
    )
