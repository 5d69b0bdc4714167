"""Names that clients and servers chose, made safe to print: tests/observe/test_printable.py.

A model name, a path or a request id may hold line breaks, terminal escapes, text that runs
backwards, half a surrogate pair, or a megabyte.
"""

from __future__ import annotations

import time

MODEL_CHARS = 128
PATH_CHARS = 256
ID_CHARS = 128
MESSAGE_CHARS = 8192
"""What one line of a log may carry of each."""


def printable(text: str, limit: int) -> str:
    """Return `text` on one line, at most `limit` characters of it, the rest marked by an ellipsis.

    Whatever is not printable by Unicode (controls, line separators, direction marks, surrogates)
    is written as its escape, so the result may be longer than `limit` but never spans lines and
    always encodes.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def encodable(text: str) -> str:
    """Return `text` unchanged where UTF-8 can carry it, else with `?` for each lone surrogate."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def iso_time(at_wall: float) -> str:
    """Return epoch seconds as UTC in ISO 8601, to the millisecond."""
    whole_ms = int(at_wall * 1e3)
    seconds, millis = divmod(whole_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{millis:03d}Z"
