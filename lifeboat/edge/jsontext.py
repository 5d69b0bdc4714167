"""Bounded JSON parsed leniently, and long strings decoded a piece at a time.

Held by tests/intake/test_longjson.py and tests/intake/test_parse_json.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import orjson

from lifeboat.core.longvalue import PIECE_CHARS, LongText
from lifeboat.edge.faults import BodyError

MAX_DEPTH = 1_000
"""Levels of nesting; the servers' own parsers give up at about this depth."""

_WHOLE_ESCAPES = re.compile(rb"[^\\]*+(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^\\]*+)*+", re.DOTALL)
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def parse_bounded(text: bytes) -> object:
    """Parse JSON of bounded size as lenient servers do: lone surrogates, NaN, endless digits.

    Raises BodyError for what no JSON parser takes.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        pass
    try:
        return cast("object", json.loads(text.decode("utf-8-sig"), parse_int=_lenient_int))
    except UnicodeDecodeError as fault:
        raise BodyError(f"the body is not UTF-8 (byte {fault.start}): send JSON as UTF-8") from None
    except RecursionError:
        raise BodyError(
            f"the body is nested more than {MAX_DEPTH:,} levels deep: send a flatter one"
        ) from None
    except json.JSONDecodeError as fault:
        raise BodyError(
            f"the body is not JSON: {fault.msg} at character {fault.pos}: send one JSON object"
        ) from None
    except ValueError:
        raise BodyError("the body is not JSON: send one JSON object") from None


def _lenient_int(digits: str) -> int | float:
    """An integer, or infinity beyond the digits that the interpreter converts."""
    return int(digits) if len(digits) < 4_000 else float("inf")


@dataclass(frozen=True, slots=True)
class StringSpan(LongText):
    """A string, or raw JSON as text, at [start, end) of the body, quotes left out."""

    body: bytes
    start: int
    end: int
    escaped: bool = True

    def pieces(self) -> Iterator[str]:
        at = self.start
        while at < self.end:
            cut = min(at + PIECE_CHARS, self.end)
            if cut < self.end:
                cut = self._safe_cut(at, cut)
            yield _decode(self.body[at:cut], self.escaped)
            at = cut

    def _safe_cut(self, at: int, cut: int) -> int:
        """Move a cut back out of a character or an escape, and from between two surrogates."""
        body = self.body
        for back in range(cut, max(at + 1, cut - 4), -1):
            if body[back] & 0xC0 != 0x80:
                cut = back
                break
        if not self.escaped or body.find(b"\\", at, cut) < 0:
            return cut
        whole = _WHOLE_ESCAPES.match(body, at, cut)
        if whole and whole.end() > at:
            cut = whole.end()
        if cut - at > 6 and _HIGH_SURROGATE.match(body, cut - 6, cut):
            cut -= 6
        return cut


def _decode(raw: bytes, escaped: bool) -> str:
    if escaped and b"\\" in raw:
        for loads in (orjson.loads, json.loads):
            try:
                return str(loads(b'"' + raw + b'"'))
            except ValueError:
                continue
    return raw.decode("utf-8", "replace")
