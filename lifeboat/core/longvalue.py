"""The parts of a big body that stay unparsed: what the shape reader may ask of them.

A body of many megabytes is not turned into objects: that takes seconds and holds the interpreter.
Its big strings and its big arrays and objects stay byte spans behind these three types, and are
read a piece at a time. The edge implements them (lifeboat/edge/longjson.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

PIECE_CHARS = 65_536
"""Longest piece of text handled in one step: sizing it takes about 1 ms, encoding it 4 to 12 ms."""


class LongText(ABC):
    """A string, or JSON taken as text, of which only the place in the body is known."""

    __slots__ = ()

    @abstractmethod
    def pieces(self) -> Iterator[str]:
        """Yield the text in order, at most PIECE_CHARS a piece. May be walked again."""


class LongJson(ABC):
    """An array or object that was left unparsed."""

    __slots__ = ()

    @abstractmethod
    def as_text(self) -> LongText:
        """Return the JSON itself as text."""


class LongArray(LongJson):
    """An array of many values."""

    __slots__ = ()

    @abstractmethod
    def chunks(self) -> Iterator[list[object]]:
        """Yield the elements in order, some thousands a chunk; an empty chunk is a pause."""


class LongObject(LongJson):
    """An object of many or of big values."""

    __slots__ = ()

    @abstractmethod
    def fields(self) -> Iterator[dict[str, object]]:
        """Yield empty dicts as pauses, and last the object's fields."""


Text = str | LongText
"""A piece of input text, wherever it is."""


def pieces_of(text: Text) -> Iterator[str]:
    """Yield a text in pieces of at most PIECE_CHARS."""
    if isinstance(text, LongText):
        yield from text.pieces()
    elif len(text) <= PIECE_CHARS:
        yield text
    else:
        for start in range(0, len(text), PIECE_CHARS):
            yield text[start : start + PIECE_CHARS]
