"""Header lines as bytes, and looking at them.

Held by tests/wire/test_framing.py.
"""

from __future__ import annotations

from collections.abc import Iterable

RawHeaders = list[tuple[bytes, bytes]]
"""Header lines in their order, names and values as they stood on the wire (outer blanks cut)."""


class Headers(list[tuple[bytes, bytes]]):
    """Header lines that are looked at often: the lower-case names are made once.

    Not to be changed after the first look. facts: what a reader found out about them, kept with
    them: heads that come again and again need no second look.
    """

    __slots__ = ("_by_name", "_lower_names", "facts")

    def __init__(self, lines: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(lines)
        self._lower_names: list[bytes] | None = None
        self._by_name: dict[bytes, list[bytes]] | None = None
        self.facts: object = None

    @classmethod
    def of(cls, lines: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return these lines as Headers, themselves if they are."""
        return lines if isinstance(lines, Headers) else cls(lines)

    @property
    def lower_names(self) -> list[bytes]:
        """The name of each line in lower case."""
        names = self._lower_names
        if names is None:
            names = self._lower_names = [name.lower() for name, _ in self]
        return names

    def values(self, lower_name: bytes) -> list[bytes]:
        """Return all values of a header, in order; the list is not to be changed."""
        by_name = self._by_name
        if by_name is None:
            by_name = self._by_name = {}
            for lower, (_, value) in zip(self.lower_names, self, strict=True):
                by_name.setdefault(lower, []).append(value)
        return by_name.get(lower_name, _NO_VALUES)


_NO_VALUES: list[bytes] = []


def header_block(headers: RawHeaders) -> bytes:
    """Return header lines as they go on the wire, each with its line end."""
    return b"".join([b"%b: %b\r\n" % line for line in headers])


def header_values(headers: RawHeaders, lower_name: bytes) -> list[bytes]:
    """Return all values of a header, in order."""
    if isinstance(headers, Headers):
        return headers.values(lower_name)
    return [value for name, value in headers if name.lower() == lower_name]


def tokens_of(headers: RawHeaders, lower_name: bytes) -> list[bytes]:
    """Return the comma-separated tokens of all lines of a header, in lower case."""
    values = header_values(headers, lower_name)
    if not values:
        return []
    joined = b",".join(values)
    return [token for part in joined.split(b",") if (token := part.strip().lower())]
