"""Big JSON bodies read in slices: long strings and crowded containers stay byte spans.

Parsing a hostile 64 MiB body takes seconds, a gigabyte, and holds the interpreter even in a thread.
Here a scanner walks the bytes with C-speed searches, pausing every few hundred microseconds, and
writes a skeleton: the same JSON with every long string, and every array or object of many values,
replaced by a number that stands for its place. Only skeletons are parsed, so no parse is larger
than SKELETON_NODES values. What was left out is scanned again, in its turn, when the shape reader
asks for it; spans once known are jumped over, so that the work stays linear.

Invariants, held by tests/intake/test_longjson.py: a body read this way has the shape it has when
parsed at once; no step takes longer than a few milliseconds; nesting never uses the C stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from lifeboat.core.longvalue import LongArray, LongJson, LongObject, LongText
from lifeboat.edge.faults import BodyError
from lifeboat.edge.jsontext import MAX_DEPTH, StringSpan, parse_bounded

MAX_NODES = 1_000_000
"""Values in one body. The largest honest one is a batch of token ids: OpenAI takes 300,000."""
LONG_STRING_BYTES = 512
"""A string of more is left in place: no field name or part type is that long."""
CROWDED_NODES = 1_000
CROWDED_BYTES = 65_536
"""A container below the top level with more values, or a larger skeleton, is left in place."""
SKELETON_NODES = 20_000
SKELETON_BYTES = 1_048_576
"""From here on every container is left in place: a skeleton parses in a few milliseconds."""
_CHUNK_NODES = 2_000
_WINDOW = 65_536
"""Bytes of a string searched in one step: 30 to 200 microseconds."""
_STRUCTURE_WINDOW = 4_096
"""Bytes outside strings taken in one step: up to 3 ms when all of them are brackets."""
_JUMP_BYTES = 4_096
"""Strings at least this long are remembered, so that a second scan skips them."""
_STEP_TOKENS = 500
"""Strings and segments handled between two pauses: about a millisecond."""

_STRING_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_OPEN, _CLOSING = b"[{", {0x5B: 0x5D, 0x7B: 0x7D}


@dataclass(slots=True)
class Document:
    """One body being read in slices.

    jumps: start -> end of the strings and containers that were left in place.
    """

    body: bytes
    jumps: dict[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True, slots=True)
class ArraySpan(LongArray):
    """An array left in place at [start, end), brackets included."""

    document: Document
    start: int
    end: int

    def as_text(self) -> LongText:
        return StringSpan(self.document.body, self.start, self.end, escaped=False)

    def chunks(self) -> Iterator[list[object]]:
        for skeleton in Scanner(self.document, self.start, self.end, in_chunks=True).steps():
            if skeleton is None:
                yield []
            else:
                yield from cast("Iterator[list[object]]", skeleton.parse())


@dataclass(frozen=True, slots=True)
class ObjectSpan(LongObject):
    """An object left in place at [start, end), brackets included."""

    document: Document
    start: int
    end: int

    def as_text(self) -> LongText:
        return StringSpan(self.document.body, self.start, self.end, escaped=False)

    def fields(self) -> Iterator[dict[str, object]]:
        for skeleton in Scanner(self.document, self.start, self.end).steps():
            if skeleton is None:
                yield {}
            elif skeleton.nodes > 2 * SKELETON_NODES:
                # No schema has that many members: what it is worth is its text.
                yield {"text": self.as_text()}
            else:
                for value in skeleton.parse():
                    yield cast("dict[str, object]", value) if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A stretch of JSON with its long parts replaced by numbers.

    longs: what the numbers stand for, in order.
    """

    pieces: list[bytes | int]
    longs: list[LongText | LongJson]
    nodes: int

    def parse(self) -> Iterator[object]:
        """Yield empty lists as pauses, and last the value, with the long parts in their places."""
        base = 7_000_000_000_000_000_000
        whole = b"".join(piece for piece in self.pieces if isinstance(piece, bytes))
        while str(base)[:8].encode() in whole and base < 9_000_000_000_000_000_000:
            base += 1_000_000_000_000
        if self.longs:
            whole = b"".join(
                piece if isinstance(piece, bytes) else b"%d" % (base + piece)
                for piece in self.pieces
            )
        value = parse_bounded(whole)
        if not self.longs:
            yield value
            return
        root: list[object] = [value]
        stack: list[list[object] | dict[str, object]] = [root]
        done = 0
        while stack:
            done += 1
            if done % 2_000 == 0:
                yield []
            holder = stack.pop()
            places = enumerate(holder) if isinstance(holder, list) else list(holder.items())
            for place, inner in places:
                if type(inner) is int and 0 <= (index := inner - base) < len(self.longs):
                    holder[place] = self.longs[index]  # pyright: ignore[reportCallIssue,reportArgumentType]
                elif isinstance(inner, (list, dict)):
                    stack.append(cast("list[object] | dict[str, object]", inner))
        yield root[0]


class Scanner:
    """Scans one JSON value at [start, end) and writes its skeleton.

    With `in_chunks` the value is an array, and its elements come in many skeletons, each an array
    again. `model_spans` are the places of the strings under `model` at the top level, quotes
    included; all of them, since a parser takes the last but a splice must change each.
    """

    def __init__(
        self, document: Document, start: int, end: int, *, in_chunks: bool = False
    ) -> None:
        self._document = document
        self._body = document.body
        self._start, self._end = start, end
        self._in_chunks = in_chunks
        self._pieces: list[bytes | int] = []
        self._longs: list[LongText | LongJson] = []
        self._ready: list[Skeleton] = []
        # Of each open container: bracket, place in the body, and of `pieces`, `longs`, nodes and
        # bytes before it.
        self._open: list[tuple[int, int, int, int, int, int]] = []
        self._nodes = 0
        self._seen_nodes = 0
        self._bytes = 0
        # The container at the second level is crowded already: it will stay in place, so nothing of
        # it is kept.
        self._dropping = False
        self._second_nodes = self._second_bytes = 0
        self._before = 0  # the last byte outside strings that is no blank: what a string follows
        self._model_comes = False
        self.model_spans: list[tuple[int, int]] = []

    def steps(self) -> Iterator[Skeleton | None]:
        """None at each pause; skeletons as they are complete. Raises BodyError."""
        body, end, at = self._body, self._end, self._start
        tokens = 0
        while at < end:
            tokens += 1
            window = min(at + _STRUCTURE_WINDOW, end)
            quote = body.find(b'"', at, window)
            stop = window if quote < 0 else quote
            at = self._structure(at, stop)
            if self._seen_nodes > MAX_NODES:
                raise BodyError(
                    f"the body has more than {MAX_NODES:,} values: send a smaller batch"
                )
            if self._ready:
                yield from self._ready
                self._ready.clear()
            elif tokens % _STEP_TOKENS == 0 or quote < 0:
                yield None
            if at == quote:
                string_end = at + 1
                for string_end in self._string_ends(at + 1):
                    if string_end < 0:
                        yield None
                self._string(at, string_end)
                at = string_end
        if self._open:
            raise BodyError("the body is not JSON: it ends inside an array or object")
        yield self._take()

    def _string_ends(self, at: int) -> Iterator[int]:
        """Negative at each pause, and last the place behind the closing quote."""
        body, end = self._body, self._end
        known = self._document.jumps.get(at - 1)
        if known is not None:
            yield known
            return
        while at < end:
            window = min(at + _WINDOW, end)
            match = _STRING_REST.match(body, at, window)
            at = match.end() if match else at
            if at < end and body[at] == 0x22:
                yield at + 1
                return
            if window == end:
                break
            yield -1
        raise BodyError("the body is not JSON: it ends inside a string")

    def _string(self, start: int, end: int) -> None:
        is_key = len(self._open) == 1 and self._before in b"{,"
        is_model = self._model_comes and self._before == 0x3A and len(self._open) == 1
        if is_key:
            self._model_comes = _is_model_key(self._body[start : min(end, start + 64)])
        elif is_model:
            self.model_spans.append((start, end))
        self._before = 0x22
        if end - start <= LONG_STRING_BYTES:
            self._add(self._body[start:end])
            return
        if end - start >= _JUMP_BYTES:
            self._document.jumps[start] = end
        following = self._body[end : end + 32].lstrip()[:1]
        if following == b":":
            self._add(b'"a key too long to mean anything"')
        else:
            self._leave(StringSpan(self._body, start + 1, end - 1))

    def _structure(self, at: int, stop: int) -> int:
        """Take the bytes between strings; return `stop`, or the place behind a known container."""
        body, jumps = self._body, self._document.jumps
        for match in _BRACKET.finditer(body, at, stop):
            place = match.start()
            bracket = body[place]
            self._plain(at, place)
            at = place
            if bracket in _OPEN:
                known = jumps.get(place)
                if known is not None and place != self._start:
                    self._leave_container(bracket, place, known)
                    self._before = 0x5D
                    return known
                self._enter(bracket, place)
            else:
                self._exit(bracket, place)
            self._before = bracket
            at = place + 1
        self._plain(at, stop)
        return stop

    def _plain(self, at: int, stop: int) -> None:
        """Take bytes without strings or brackets: blanks, commas, colons, numbers, words."""
        if at >= stop:
            return
        piece = self._body[at:stop]
        self._add(piece)
        commas = piece.count(b",")
        self._nodes += commas
        self._seen_nodes += commas
        if not self._open and self._before and piece.strip():
            raise BodyError("the body is not JSON: something follows its end")
        bare = piece.rstrip()
        if bare:
            self._before = bare[-1]
        if commas and self._in_chunks and self._is_full():
            self._ready.append(self._take_chunk(piece))

    def _enter(self, bracket: int, place: int) -> None:
        if not self._open and place != self._start:
            raise BodyError("the body is not JSON: something follows its end")
        if len(self._open) >= MAX_DEPTH:
            raise BodyError(
                f"the body is nested more than {MAX_DEPTH:,} levels deep: send a flatter one"
            )
        self._open.append(
            (bracket, place, len(self._pieces), len(self._longs), self._nodes, self._bytes)
        )
        if len(self._open) == 2:
            self._second_nodes, self._second_bytes = self._nodes, self._bytes
        self._add(b"[" if bracket == 0x5B else b"{")
        self._nodes += 1
        self._seen_nodes += 1

    def _exit(self, bracket: int, place: int) -> None:
        if not self._open or _CLOSING[self._open[-1][0]] != bracket:
            raise BodyError(f"the body is not JSON: byte {place} closes what was not opened")
        opener, start, pieces, longs, nodes, size = self._open.pop()
        self._add(b"]" if bracket == 0x5D else b"}")
        if not self._open:
            return
        inside, skeleton_bytes = self._nodes - nodes, self._bytes - size
        full = self._nodes > SKELETON_NODES or self._bytes > SKELETON_BYTES
        crowded = inside > CROWDED_NODES or skeleton_bytes > CROWDED_BYTES
        if len(self._open) == 1:
            crowded = crowded or self._dropping or (full and inside > 1)
            self._dropping = False
        if crowded:
            del self._pieces[pieces:]
            del self._longs[longs:]
            self._nodes, self._bytes = nodes + 1, size
            self._document.jumps[start] = place + 1
            self._leave_container(opener, start, place + 1)
        elif inside == 1 and place - start < 8 and not self._body[start + 1 : place].strip():
            self._seen_nodes -= 1  # an empty container is one value, its comma another's

    def _leave_container(self, bracket: int, start: int, end: int) -> None:
        span = ArraySpan if bracket == 0x5B else ObjectSpan
        self._leave(span(self._document, start, end))

    def _leave(self, long: LongText | LongJson) -> None:
        self._bytes += 20
        if not self._dropping:
            self._pieces.append(len(self._longs))
            self._longs.append(long)

    def _add(self, piece: bytes) -> None:
        self._bytes += len(piece)
        if not self._dropping:
            self._pieces.append(piece)
            if self._bytes - self._second_bytes > CROWDED_BYTES or (
                self._nodes - self._second_nodes > CROWDED_NODES
            ):
                self._dropping = len(self._open) > 1

    def _is_full(self) -> bool:
        """Whether enough elements of the array are there for a chunk."""
        return len(self._open) == 1 and (
            self._nodes >= _CHUNK_NODES or self._bytes >= CROWDED_BYTES
        )

    def _take_chunk(self, last: bytes) -> Skeleton:
        """Close the chunk at the last comma of its last piece; behind it begins the next."""
        head, _, tail = last.rpartition(b",")
        self._pieces[-1] = head + b"]"
        skeleton = self._take()
        self._pieces = [b"[" + tail]
        self._longs = []
        self._nodes, self._bytes = 1, len(tail) + 1
        return skeleton

    def _take(self) -> Skeleton:
        return Skeleton(self._pieces, self._longs, self._nodes)


def _is_model_key(raw: bytes) -> bool:
    if raw == b'"model"':
        return True
    if b"\\" not in raw or len(raw) > 44:  # six letters, each escaped, and the quotes: 38 bytes
        return False
    try:
        return json.loads(raw) == "model"
    except ValueError:
        return False
