"""tiktoken encodings built from the vocabulary files in this package, without a network.

tiktoken's own registry fetches its vocabularies at first use; a router must start on a machine
that reaches nothing. The split patterns are tiktoken's (openai_public.py), the ranks are the files
in vocabulary/ (see its NOTICE). Held by tests/estimate/test_encodings.py.
"""

from __future__ import annotations

import gzip
from base64 import b64decode
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken import Encoding


@dataclass(frozen=True, slots=True)
class _EncodingRow:
    """What an encoding needs beside its ranks.

    Special tokens are left out on purpose: text in a request that looks like one is text, and must
    be counted as text.
    """

    pattern: str
    vocabulary: str


_O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)

_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)

_ENCODINGS = {
    "cl100k_base": _EncodingRow(_CL100K_PATTERN, "cl100k_base.tiktoken.gz"),
    "o200k_base": _EncodingRow(_O200K_PATTERN, "o200k_base.tiktoken.gz"),
}

ENCODING_NAMES: tuple[str, ...] = tuple(_ENCODINGS)
"""What `LIFEBOAT_LB_TOKENIZER` may name beside `quick`."""


def load_ranks(name: str) -> dict[bytes, int]:
    """Read the merge ranks of an encoding: token bytes -> rank. About 0.1 to 0.2 s of CPU.

    Raises KeyError for a name that is not in ENCODING_NAMES.
    """
    row = _ENCODINGS[name]
    packed = files("lifeboat.counting").joinpath("vocabulary", row.vocabulary).read_bytes()
    ranks: dict[bytes, int] = {}
    for line in gzip.decompress(packed).splitlines():
        token, _, rank = line.partition(b" ")
        ranks[b64decode(token)] = int(rank)
    return ranks


def load_encoding(name: str) -> Encoding:
    """Build an encoding by name. Takes 0.3 to 0.7 s and 35 to 75 MB: call it in a thread.

    Raises KeyError for a name that is not in ENCODING_NAMES.
    """
    # Imported here: tiktoken pulls in `requests`, which a router on the quick figure never needs.
    from tiktoken import Encoding

    return Encoding(
        name=name,
        pat_str=_ENCODINGS[name].pattern,
        mergeable_ranks=load_ranks(name),
        special_tokens={},
    )
