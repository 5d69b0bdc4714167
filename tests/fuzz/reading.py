"""What bytes mean by the letter of RFC 9112: the second reading that the router's is held against.

Nothing here is shared with the router. Where the RFC leaves a choice the verdict is ODD: such a
message may be refused, but if it is passed on, then with the framing found here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(rb"(\S+) (\S+) HTTP/([0-9]\.[0-9])")
_STATUS_LINE = re.compile(rb"HTTP/(1\.[01])( +)([1-9][0-9]{2})(| [^\r\n\0]*)")
_CONTROL = re.compile(rb"[\x01-\x08\x0a-\x1f\x7f]")
_HEAD_END = re.compile(rb"\n\r?\n")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})([ \t]*(?:;[^\r\n\0]*)?)(\r?\n)")
_MAYBE_CHUNK = re.compile(rb"[0-9A-Fa-f]*[ \t]*(;[^\r\n\0]*)?\r?")
_ABSOLUTE = re.compile(rb"(?i)http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?(?=[/?]|$)")
CONTROL = "a control character"
"""Why a message is odd that is passed on as it came."""
HeaderLines = list[tuple[bytes, bytes]]


class Verdict(Enum):
    """What may become of a message."""

    PLAIN = auto()
    """Valid, as a careful sender writes it."""
    ODD = auto()
    """Valid or repairable: refused, or taken as read here."""
    FAULTY = auto()
    """Nothing of it, nor of what follows on the connection, may pass for a whole message."""
    CUT = auto()
    """Not all of it came."""


@dataclass(slots=True)
class Message:
    """A request or an answer. closes: it is the last on its connection. status: 0 of a request."""

    verdict: Verdict = Verdict.PLAIN
    why: str = ""
    method: str = ""
    target: bytes = b""
    status: int = 0
    headers: HeaderLines = field(default_factory=list)
    body: bytes = b""
    closes: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, by its name in lower case."""
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: bytes) -> list[bytes]:
        """Return the parts of a header that is a list, in lower case."""
        parts = b",".join(self.values(name)).split(b",")
        return [part.strip(b" \t").lower() for part in parts if part.strip(b" \t")]

    @property
    def backend(self) -> bytes:
        """The backend that gave an answer; b"": the router itself."""
        return b"".join(self.values(b"x-lifeboat-backend"))

    def odd(self, why: str) -> None:
        """Something is not as it should be, but can be read."""
        self.verdict, self.why = Verdict.ODD, why


class _FaultyError(Exception):
    pass


class _CutError(Exception):
    pass


def read_requests(data: bytes) -> list[Message]:
    """Return the requests in what was sent, up to the first that ends all reading."""
    return _read(data, None, "")


def read_answers(data: bytes, methods: Sequence[str], end: str) -> list[Message]:
    """Return the final answers. methods: of their requests; end: "closed" completes the last."""
    return _read(data, methods, end)


def _read(data: bytes, methods: Sequence[str] | None, end: str) -> list[Message]:
    found: list[Message] = []
    at = 0
    while data[at:].strip(b"\r\n"):
        one = Message()
        try:
            at = _read_head(one, data, at, is_answer=methods is not None)
            if methods is None:
                at = _read_body_of_request(one, data, at)
            elif 100 <= one.status < 200 and one.status != 101:
                continue
            else:
                asked = methods[len(found)] if len(found) < len(methods) else "GET"
                at = _read_body_of_answer(one, data, at, asked, end)
        except _FaultyError as fault:
            one.verdict, one.why = Verdict.FAULTY, str(fault)
        except _CutError:
            one.verdict = Verdict.CUT
        found.append(one)
        if one.verdict in (Verdict.FAULTY, Verdict.CUT):
            break
    return found


# ---- heads ---------------------------------------------------------------------------------------


def _read_head(one: Message, data: bytes, at: int, *, is_answer: bool) -> int:
    while data[at : at + 1] in (b"\r", b"\n"):
        one.odd("line ends before it")
        at += 1
    match = _HEAD_END.search(data, at)
    if match is None:
        raise _CutError
    block = data[at : match.start() + 1]
    if b"\0" in block:
        raise _FaultyError("NUL")
    if block.count(b"\n") != block.count(b"\r\n") or match.group() != b"\n\r\n":
        one.odd("a bare LF")
    lines = [line.removesuffix(b"\r") for line in block.split(b"\n")[:-1]]
    if any(b"\r" in line for line in lines):
        raise _FaultyError("a bare CR")
    version = (_read_status_line if is_answer else _read_request_line)(one, lines[0])
    one.headers = _read_headers(one, lines[1:], may_repair=is_answer)
    if not is_answer and version == b"1.1" and len(one.values(b"host")) != 1:
        one.odd("no or two hosts")
    tokens = one.tokens(b"connection")
    if not {b"close", b"keep-alive"}.issuperset(tokens):
        one.odd("it says something of the connection")
    one.closes = b"close" in tokens or (version < b"1.1" and b"keep-alive" not in tokens)
    if version < b"1.1" and one.values(b"transfer-encoding"):
        if not is_answer:
            raise _FaultyError("a coding in HTTP/1.0")
        one.odd("a coding in HTTP/1.0")
        one.closes = True
    return match.end()


def _read_request_line(one: Message, line: bytes) -> bytes:
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        if len(line.split()) < 3:
            raise _FaultyError("no request line")
        one.odd("an odd request line")
        one.method = line.split()[0].decode("latin-1")
        return b"1.1"
    method, target, version = match.groups()
    if not version.startswith(b"1"):
        raise _FaultyError("another version")
    one.method, one.target = method.decode("latin-1"), target
    if (bare := _ABSOLUTE.sub(b"", target, count=1)) != target:
        one.target = bare if bare.startswith(b"/") else b"/" + bare
    if _TOKEN.fullmatch(method) is None or version != b"1.1" or not target.isascii():
        one.odd("an odd method, target or version")
    return version


def _read_status_line(one: Message, line: bytes) -> bytes:
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise _FaultyError(f"no status line: {line!r}")
    version, blanks, status, reason = match.groups()
    one.status = int(status)
    if blanks != b" " or not reason:
        one.odd("blanks that are missing or too many")
    elif _CONTROL.search(reason):
        one.odd(CONTROL)
    return version


def _read_headers(one: Message, lines: list[bytes], *, may_repair: bool) -> HeaderLines:
    headers: HeaderLines = []
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            if not headers:
                raise _FaultyError("a blank before the first header")
            one.odd("a folded line")
            name, value = headers[-1]
            headers[-1] = (name, (value + b" " + line.strip(b" \t")).strip(b" \t"))
            continue
        name, colon, value = line.partition(b":")
        if may_repair and name.rstrip(b" \t") != name:
            one.odd("a blank before the colon")
            name = name.rstrip(b" \t")
        if not colon or _TOKEN.fullmatch(name) is None:
            raise _FaultyError(f"no header line: {line!r}")
        value = value.strip(b" \t")
        if _CONTROL.search(value):
            one.odd(CONTROL)
        headers.append((name.lower(), value))
    return headers


# ---- bodies --------------------------------------------------------------------------------------


def _read_body_of_request(one: Message, data: bytes, at: int) -> int:
    if codings := one.values(b"transfer-encoding"):
        if one.values(b"content-length") or [coding.lower() for coding in codings] != [b"chunked"]:
            raise _FaultyError("codings that cannot be, or a length beside one")
        return _read_chunks(one, data, at)
    return _read_length(one, data, at) if one.values(b"content-length") else at


def _read_body_of_answer(one: Message, data: bytes, at: int, asked: str, end: str) -> int:
    if one.status == 101:
        raise _FaultyError("another protocol")
    if asked == "HEAD" or one.status in (204, 304):
        if one.status == 204 and one.values(b"transfer-encoding") + one.values(b"content-length"):
            one.odd("a framing of nothing")
        return at
    if (codings := one.values(b"transfer-encoding")) and not one.tokens(b"transfer-encoding"):
        one.odd("a list of no codings")
    elif codings:
        if one.tokens(b"transfer-encoding") != [b"chunked"]:
            raise _FaultyError("codings that cannot be")
        if one.values(b"content-length") or len(codings) > 1:
            one.odd("a length beside a coding")
        return _read_chunks(one, data, at)
    if one.values(b"content-length"):
        return _read_length(one, data, at)
    one.body, one.closes = data[at:], True
    if end != "closed":
        raise _CutError
    return len(data)


def _read_length(one: Message, data: bytes, at: int) -> int:
    stated = one.tokens(b"content-length")
    if len(set(stated)) != 1 or not re.fullmatch(rb"[0-9]+", stated[0]):
        raise _FaultyError("no length, or several")
    if one.values(b"content-length") != stated[:1] or len(stated[0]) > 15:
        one.odd("a length said twice, or beyond all measure")
    length = int(stated[0])
    one.body = data[at : at + length]
    if len(one.body) < length:
        raise _CutError
    return at + length


def _read_chunks(one: Message, data: bytes, at: int) -> int:
    while True:
        match = _CHUNK.match(data, at)
        if match is None:
            if _MAYBE_CHUNK.fullmatch(data, at):
                raise _CutError
            raise _FaultyError(f"no chunk size: {data[at : at + 40]!r}")
        if match.group(2) or match.group(3) == b"\n":
            one.odd("a chunk extension or a bare LF")
        size, at = int(match.group(1), 16), match.end()
        if size == 0:
            return _read_trailers(one, data, at)
        one.body += data[at : at + size]
        at += size
        ending = data[at : at + 2]
        if ending[:1] == b"\n":
            one.odd("a bare LF")
            at += 1
            continue
        if not b"\r\n".startswith(ending):
            raise _FaultyError("no line end behind a chunk")
        if len(ending) < 2:
            raise _CutError
        at += 2


def _read_trailers(one: Message, data: bytes, at: int) -> int:
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            raise _CutError
        line, at = data[at:end], end + 1
        if not line.endswith(b"\r"):
            one.odd("a bare LF in trailers")
        line = line.removesuffix(b"\r")
        if not line:
            return at
        one.odd("a trailer")
