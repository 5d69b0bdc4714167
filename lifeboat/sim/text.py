"""The simulator's own tokenizer and its deterministic answers.

One token is four bytes of UTF-8, the last one fewer: close to English under a real tokenizer
(4.3 to 4.7 bytes per token), reversible, and linear at the speed of an encode. `/tokenize`, usage
figures and the cost charged all come from here, so they agree. Answers are made of four-byte
pieces, so that tokenising an answer gives the completion tokens it was charged for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

TOKEN_BYTES = 4
_SLICE_BYTES = 16_384 * TOKEN_BYTES
IMAGE_TOKENS = 256
"""Charged for each image part of a prompt, whatever its size."""

_WORDS = "oar sea row bay fog ebb tug log cod eel sun sky aft tar rig fin net hut bow".split()
_PIECES = tuple(f" {word}" for word in _WORDS)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def count(text: str) -> int:
    """Return the tokens of `text`."""
    return -(-len(_encode(text)) // TOKEN_BYTES)


def tokenize(text: str) -> list[int]:
    """Return token ids: the bytes of each token behind a leading 1, as a number."""
    return [token for part in tokenize_in_slices(text) for token in part]


def tokenize_in_slices(text: str) -> Iterator[list[int]]:
    """Yield the token ids in parts that take a few milliseconds each."""
    raw = _encode(text)
    for begin in range(0, len(raw), _SLICE_BYTES):
        end = min(begin + _SLICE_BYTES, len(raw))
        yield [
            int.from_bytes(b"\x01" + raw[at : min(at + TOKEN_BYTES, end)], "big")
            for at in range(begin, end, TOKEN_BYTES)
        ]


def detokenize(ids: Iterable[int]) -> str:
    """Return the text of token ids; an id that `tokenize` never makes becomes U+FFFD."""
    raw = bytearray()
    for token in ids:
        length = (token.bit_length() - 1) // 8 if token > 0 else 0
        if 1 <= length <= TOKEN_BYTES and token >> (8 * length) == 1:
            raw += (token & ((1 << (8 * length)) - 1)).to_bytes(length, "big")
        else:
            raw += "\ufffd".encode()
    return raw.decode("utf-8", "replace")


def seed_of(prompt: str | Sequence[int]) -> int:
    """Return a number that depends on the prompt alone, the same in every process."""
    raw = _encode(prompt) if isinstance(prompt, str) else repr(list(prompt)).encode()
    return crc32(raw)


def piece(seed: int, at: int) -> str:
    """Return token `at` of the answer with this seed: four bytes of ASCII."""
    return _PIECES[(seed + at * (1 + seed % 7)) % len(_PIECES)]


def answer(seed: int, tokens: int) -> str:
    """Return the first `tokens` tokens of the answer with this seed."""
    return "".join([piece(seed, at) for at in range(tokens)])
