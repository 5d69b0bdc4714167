"""The head of a response: parsed, and remembered where only its date and length differ.

Source: RFC 9112 sections 4, 5 and 6.3. A server's heads are alike but for two values, so what was
found out about one (`HeadForm`) serves the next; the values fill the form's holes. Held by
tests/wire/test_framing.py and tests/wire/test_answer_head.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from lifeboat.wire.headers import Headers, RawHeaders, tokens_of

BODILESS_STATUSES = frozenset({204, 304})
"""Answers that have no body whatever their headers say (RFC 9112 section 6.3)."""
MOST_FORMS = 256
MOST_FORM_BYTES = 4096
"""What is remembered: so many forms, of heads no larger."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) +([1-9][0-9]{2})(?: ([^\r\n\0]*))?")
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN_LINE = re.compile(rb"^([!#$%&'*+\-.^_`|~0-9A-Za-z]++):([^\r\n\0]*+)\r?\n", re.MULTILINE)
"""A header line as nearly all are: no blank before the colon, no folding."""
_VARYING = re.compile(rb"\n([Cc]ontent-[Ll]ength|[Dd]ate): ([^\r\n\0\x01]*)")
"""The two lines that differ between the heads of one server."""
_HOLE = b"\x01%d\x01"
"""Stands for a value in a form; no header that has it is made a form of."""
HOLE = re.compile(rb"\x01([0-9]+)\x01")
"""Finds the holes in what was written of a form."""
_DIGITS = re.compile(rb"[0-9]{1,18}")


class BadAnswerError(Exception):
    """The peer's bytes are no HTTP/1.1 response, or the response was cut."""


class BodyEnd(Enum):
    """How a response says where its body ends (RFC 9112 section 6.3, rules 1, 4, 6 and 8)."""

    NOTHING = auto()
    """There is no body."""
    CHUNKED = auto()
    LENGTH = auto()
    CLOSE = auto()
    """With the connection."""


@dataclass(slots=True)
class HeadForm:
    """What heads that differ in date and length alone have in common.

    lines: with a hole for each value that differs, and its place in `holes`. keep_alive: the peer
    allows another request after this one. body_end: None where it differs with the values, or is
    wrong. facts: what a reader found out, kept with the form.
    """

    status: int
    reason: bytes
    lines: Headers
    keep_alive: bool
    holes: tuple[int, ...] = ()
    body_end: BodyEnd | None = None
    length_hole: int | None = None
    facts: object = None


class ResponseHead:
    """Status line and headers of one response: a form, and the values in its holes."""

    __slots__ = ("_headers", "form", "keep_alive", "reason", "status", "values")

    def __init__(self, form: HeadForm, values: Sequence[bytes] = ()) -> None:
        self.form = form
        self.values = values
        self.status = form.status
        self.reason = form.reason
        self.keep_alive = form.keep_alive
        self._headers: Headers | None = None

    @property
    def headers(self) -> Headers:
        """The header lines as they came, duplicates and order kept."""
        headers = self._headers
        if headers is None:
            form = self.form
            headers = form.lines
            if form.holes:
                lines = list(headers)
                for place, value in zip(form.holes, self.values, strict=True):
                    lines[place] = (lines[place][0], value)
                headers = Headers(lines)
            self._headers = headers
        return headers

    def body(self) -> tuple[BodyEnd, int]:
        """Return how the body ends, and its length where that is known (else 0).

        The request's method is not known here. Raises BadAnswerError.
        """
        form = self.form
        end, hole = form.body_end, form.length_hole
        if end is BodyEnd.LENGTH and hole is not None:
            value = self.values[hole]
            if _DIGITS.fullmatch(value) is not None:
                return end, int(value)
        elif end is not None and end is not BodyEnd.LENGTH:
            return end, 0
        return _body_end(self.headers, self.status)


_forms: dict[bytes, HeadForm] = {}


def parse_head(block: bytes) -> ResponseHead:
    """Return a head, given without its blank line and last LF. Raises BadAnswerError."""
    parts = _VARYING.split(block)
    # Texts and names make the key; between two texts there is exactly one name.
    values = [value.strip(b" \t") for value in parts[2::3]]
    del parts[2::3]
    key = b"\x01".join(parts)
    form = _forms.get(key)
    if form is None or len(form.holes) != len(values):
        if b"\x01" in block or len(block) > MOST_FORM_BYTES:
            return ResponseHead(_form_of(block))
        form = _form_with_holes(parts, len(values))
        if form is None:
            return ResponseHead(_form_of(block))
        if len(_forms) >= MOST_FORMS:
            del _forms[next(iter(_forms))]
        _forms[key] = form
    hole = form.length_hole
    if hole is not None and not values[hole].isdigit():
        return ResponseHead(_form_of(block))
    return ResponseHead(form, values)


def _form_with_holes(parts: list[bytes], count: int) -> HeadForm | None:
    """Return the form of heads with these texts and names; None where a hole is no whole value."""
    pieces = [parts[0]]
    for hole in range(count):
        name, text = parts[1 + 2 * hole], parts[2 + 2 * hole]
        pieces.append(b"\n%b: %b%b" % (name, _HOLE % hole, text))
    form = _form_of(b"".join(pieces))
    places: list[int] = []
    for hole in range(count):
        found = [at for at, (_, value) in enumerate(form.lines) if value == _HOLE % hole]
        if len(found) != 1:
            return None
        places.append(found[0])
    form.holes = tuple(places)
    lengths = form.lines.values(b"content-length")
    if len(lengths) > 1:
        return None
    if form.body_end is BodyEnd.LENGTH:
        holes = [hole for hole in range(count) if lengths == [_HOLE % hole]]
        form.length_hole = holes[0] if holes else None
        form.body_end = BodyEnd.LENGTH if holes else None
    return form


def _form_of(block: bytes) -> HeadForm:
    status_line, _, rest = block.partition(b"\n")
    # A stray line end before the status line is tolerated (RFC 9112 section 2.2).
    while rest and status_line in (b"", b"\r"):
        status_line, _, rest = rest.partition(b"\n")
    match = _STATUS_LINE.fullmatch(status_line.removesuffix(b"\r"))
    if match is None:
        raise BadAnswerError("the backend does not speak HTTP/1.1")
    headers = _with_one_length(Headers(parse_lines(rest + b"\n" if rest else b"")))
    connection = tokens_of(headers, b"connection")
    if match.group(1) == b"1":
        keep_alive = b"close" not in connection
    else:
        keep_alive = b"keep-alive" in connection
    status = int(match.group(2))
    form = HeadForm(status, match.group(3) or b"", headers, keep_alive)
    if status in BODILESS_STATUSES:
        form.body_end = BodyEnd.NOTHING
    elif tokens_of(headers, b"transfer-encoding") == [b"chunked"]:
        form.body_end = BodyEnd.CHUNKED
    elif not headers.values(b"transfer-encoding"):
        has_length = bool(headers.values(b"content-length"))
        form.body_end = BodyEnd.LENGTH if has_length else BodyEnd.CLOSE
    return form


def _with_one_length(headers: Headers) -> Headers:
    """Return the lines with a length that was said twice said once (RFC 9112 section 6.3, rule 5).

    Passed on as it came, a client may refuse it. Lengths that differ stay, and are refused here.
    """
    said = headers.values(b"content-length")
    lengths = tokens_of(headers, b"content-length")
    if said == lengths[:1] or len(set(lengths)) != 1:
        return headers
    place = headers.lower_names.index(b"content-length")
    lines = [line for line in headers if line[0].lower() != b"content-length"]
    lines.insert(place, (headers[place][0], lengths[0]))
    return Headers(lines)


def _body_end(headers: Headers, status: int) -> tuple[BodyEnd, int]:
    """RFC 9112 section 6.3, rules 1, 3, 4, 5, 6 and 8. Raises BadAnswerError."""
    if status in BODILESS_STATUSES:
        return BodyEnd.NOTHING, 0
    codings = tokens_of(headers, b"transfer-encoding")
    if codings:
        if codings != [b"chunked"]:
            raise BadAnswerError("the backend used a transfer coding other than chunked")
        return BodyEnd.CHUNKED, 0
    if not headers.values(b"content-length"):
        return BodyEnd.CLOSE, 0
    length, *others = tokens_of(headers, b"content-length") or [b""]
    if others or _DIGITS.fullmatch(length) is None:
        raise BadAnswerError("the backend sent an invalid or ambiguous Content-Length")
    return BodyEnd.LENGTH, int(length)


def parse_lines(block: bytes) -> RawHeaders:
    """Parse whole header lines. Raises BadAnswerError."""
    plain = _PLAIN_LINE.findall(block)
    if len(plain) == block.count(b"\n"):
        return [(name, value.strip(b" \t")) for name, value in plain]
    return _parse_odd_lines(block.removesuffix(b"\n").split(b"\n"))


def _parse_odd_lines(lines: list[bytes]) -> RawHeaders:
    headers: RawHeaders = []
    for raw in lines:
        line = raw.removesuffix(b"\r")
        if b"\r" in line or b"\0" in line:
            raise BadAnswerError("a response header holds a forbidden character")
        if line[:1] in (b" ", b"\t") and headers:
            # Obsolete line folding becomes one blank (RFC 9112 section 5.2).
            name, value = headers[-1]
            headers[-1] = (name, value + b" " + line.strip(b" \t"))
            continue
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise BadAnswerError("a response header line is malformed")
        headers.append((name, value.strip(b" \t")))
    return headers
