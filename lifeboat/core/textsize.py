"""The quick figure for a piece of text: a linear, script-aware guess at its tokens, with bounds.

A text is turned into a class a character and the classes and runs are counted by a handful of
C-speed passes (`bytes.translate`, `bytes.count`, one shift of a big integer): about 10 ms of CPU a
megabyte, where tiktoken takes 60 to 200. The figure is a weighted sum of those counts; the weights
are fitted by bench/estimate.py (docs/explanation/estimate.md has the table of errors).

Invariants, held by tests/estimate/test_textsize.py:
- `low` is proved, not measured: every run of ASCII letters is at least one piece of the
  tokenizer's split pattern, and a digit piece holds at most three digits. So a text is never called
  too long by the quick figure alone when it is not.
- `high` is proved too, at a token a byte, but for ASCII text with the make-up of prose, code or
  numbers: there it is `Weights.high_factor` times the figure, measured over natural text and over
  text made to mislead it.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

_RARE = b"jkqxzvw"
_VOWELS = b"aeiou"

_ASCII_CLASSES = ("o", "l", "r", "U", "D", "P", "N", "T", "S")
"""Vowel, other lower case, rare lower case, upper case, digit, punctuation, newline, tab or other
control, space."""

_LEAD_CLASSES: tuple[tuple[int, int, str], ...] = (
    (0xC2, 0xC2, "a"),  # Latin-1 signs
    (0xC3, 0xC3, "b"),  # Latin-1 letters
    (0xC4, 0xC8, "e"),  # Latin Extended
    (0xC9, 0xCD, "i"),  # phonetic, combining, Greek's first signs
    (0xCE, 0xCF, "g"),  # Greek
    (0xD0, 0xD1, "c"),  # Cyrillic, as in Russian
    (0xD2, 0xD3, "d"),  # Cyrillic, the letters of Kazakh, Mongolian and others
    (0xD4, 0xD5, "m"),  # Armenian
    (0xD6, 0xD7, "h"),  # Hebrew
    (0xD8, 0xDB, "A"),  # Arabic
    (0xDC, 0xDF, "n"),  # Syriac, N'Ko and neighbours
    (0xE0, 0xE0, "I"),  # Indic, Thai, Lao: split by the second byte
    (0xE1, 0xE1, "O"),  # Georgian, Ethiopic, Khmer, Vietnamese letters: split likewise
    (0xE2, 0xE2, "Q"),  # general punctuation, symbols
    (0xE3, 0xE3, "K"),  # kana, CJK punctuation
    (0xE4, 0xE9, "C"),  # Han
    (0xEA, 0xED, "H"),  # Hangul
    (0xEE, 0xEF, "F"),  # private use, full-width forms
    (0xF0, 0xFF, "E"),  # beyond the basic plane: emoji, mathematical letters
)
"""First byte of a UTF-8 character -> its class: scripts live in blocks."""

_E0_SCRIPTS = (
    ("devanagari", (0xA4, 0xA5)),
    ("bengali", (0xA6, 0xA7)),
    ("gurmukhi", (0xA8, 0xA9)),
    ("gujarati", (0xAA, 0xAB)),
    ("odia", (0xAC, 0xAD)),
    ("tamil", (0xAE, 0xAF)),
    ("telugu", (0xB0, 0xB1)),
    ("kannada", (0xB2, 0xB3)),
    ("malayalam", (0xB4, 0xB5)),
    ("sinhala", (0xB6, 0xB7)),
    ("thai", (0xB8, 0xB9)),
    ("lao", (0xBA, 0xBB)),
)
_E1_SCRIPTS = (
    ("vietnamese", (0xBA, 0xBB)),
    ("myanmar", (0x80, 0x81, 0x82)),
    ("georgian", (0x83,)),
    ("ethiopic", (0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D)),
    ("khmer", (0x9E, 0x9F)),
)

_ASCII_FEATURES = (
    "vowel", "consonant", "rare_letter", "upper", "word", "digit", "digit_run",
    "punctuation", "punctuation_run", "newline", "newline_run", "control_run", "th",
)  # fmt: skip
_SCRIPT_FEATURES = (
    "latin1_sign", "latin1_letter", "latin_extended", "phonetic", "greek", "cyrillic",
    "cyrillic_extended", "armenian", "hebrew", "arabic", "syriac",
    *(name for name, _ in _E0_SCRIPTS), "e0_other",
    *(name for name, _ in _E1_SCRIPTS), "e1_other", "symbol", "kana", "han", "hangul",
    "full_width", "astral", "foreign_word",
)  # fmt: skip
FEATURES: tuple[str, ...] = _ASCII_FEATURES + _SCRIPT_FEATURES
"""What is counted, in the order of the weights. `word` is a run of ASCII letters, `foreign_word` a
run of other characters, `th` the digraphs th, he and in, which tell English from its neighbours."""


def _class_of(byte: int) -> str:
    for first, last, name in _LEAD_CLASSES:
        if first <= byte <= last:
            return name
    char = chr(byte)
    if "a" <= char <= "z":
        return "o" if byte in _VOWELS else "r" if byte in _RARE else "l"
    if "A" <= char <= "Z":
        return "U"
    if "0" <= char <= "9":
        return "D"
    if char in "\r\n":
        return "N"
    if char == " ":
        return "S"
    return "T" if byte < 0x20 or byte == 0x7F else "P"


_CLASS_TABLE = bytes(ord(_class_of(byte)) for byte in range(256))
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))

_LETTER, _DIGIT, _PUNCT, _NEWLINE, _CONTROL, _FOREIGN = 1, 2, 4, 8, 16, 65
_RUN_BITS = {"o": 1, "l": 1, "r": 1, "U": 1, "D": 2, "P": 4, "N": 8, "T": 16, "S": 0}
# A foreign character carries the letter's bit too, so that a letter behind it begins no word: what
# is counted as a word must be one piece of the split pattern for certain.
_RUN_TABLE = bytes(_RUN_BITS.get(chr(byte), _FOREIGN) for byte in range(256))


SHORT_SLACK = 24.0
"""Tokens that `high` adds for text too short to tell its make-up: two dozen odd characters may each
be a token of their own."""


@dataclass(frozen=True, slots=True)
class TextSize:
    """Tokens of a text by the quick figure, and the bounds its true count lies within."""

    tokens: float
    low: int
    high: float

    def __add__(self, other: TextSize) -> TextSize:
        """The size of two texts together."""
        return TextSize(self.tokens + other.tokens, self.low + other.low, self.high + other.high)


NO_TEXT = TextSize(0.0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """Tokens for each counted feature under one encoding, and how far to trust the sum.

    high_factor: plausible ASCII text counted at most this many times its figure, over every family
    of text in bench/estimate.py.
    """

    encoding: str
    by_feature: tuple[float, ...]
    high_factor: float


@dataclass(slots=True)
class Counts:
    """What was counted in a text.

    by_feature: in the order of FEATURES; only the ASCII part of it for ASCII text.
    ascii_chars, raw_bytes: characters below 0x80, and UTF-8 bytes in all.
    least: tokens that are certain.
    """

    by_feature: list[int]
    ascii_chars: int
    raw_bytes: int
    least: int


def _run_starts(classes: bytes) -> bytes:
    """One byte a character: the bits of the class whose run begins there, else 0."""
    runs = int.from_bytes(classes.translate(_RUN_TABLE), "little")
    return (runs & ~(runs << 8)).to_bytes(len(classes), "little")


def count_features(text: str) -> Counts:
    """Count the features of a text. Lone surrogates count as the three bytes they would take."""
    raw = text.encode("utf-8", "surrogatepass")
    classes = raw.translate(_CLASS_TABLE, _CONTINUATION_BYTES)
    starts = _run_starts(classes)
    count, begins = classes.count, starts.count
    digits, words = count(b"D"), begins(b"\x01")
    # No more digraphs than words, so that their negative weight cannot eat a run made of them.
    digraphs = min(words, raw.count(b"th") + raw.count(b"he") + raw.count(b"in"))
    counts = [
        count(b"o"), count(b"l"), count(b"r"), count(b"U"), words, digits, begins(b"\x02"),
        count(b"P"), begins(b"\x04"), count(b"N"), begins(b"\x08"), begins(b"\x10"), digraphs,
    ]  # fmt: skip
    # o200k_base joins "don" and "'t" to one piece, so an apostrophe may take a word away.
    least = max(0, words - raw.count(b"'")) + (digits + 2) // 3
    if len(raw) == len(text):
        return Counts(counts, len(raw), len(raw), least)
    counts += [
        count(name) for name in (b"a", b"b", b"e", b"i", b"g", b"c", b"d", b"m", b"h", b"A", b"n")
    ]
    _add_split(counts, raw, count(b"I"), 0xE0, _E0_SCRIPTS)
    _add_split(counts, raw, count(b"O"), 0xE1, _E1_SCRIPTS)
    counts += [count(name) for name in (b"Q", b"K", b"C", b"H", b"F", b"E")]
    counts.append(begins(b"\x41"))
    foreign = sum(counts[len(_ASCII_FEATURES) : -1])
    return Counts(counts, len(classes) - foreign, len(raw), least)


def _add_split(
    counts: list[int],
    raw: bytes,
    total: int,
    lead: int,
    scripts: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    """Append a count per script under one lead byte, then what is left of `total`."""
    if total == 0:
        counts += [0] * (len(scripts) + 1)
        return
    for _, seconds in scripts:
        found = sum(raw.count(bytes((lead, second))) for second in seconds)
        counts.append(found)
        total -= found
    counts.append(total)


def _is_plausible(counts: Counts) -> bool:
    """Whether the ASCII part has the make-up of prose, code or numbers, on which the factor holds.

    Everything else (one character repeated, words without vowels, bare punctuation, white space)
    may be worth a token a character, and is given that bound.
    """
    vowels, others, rare, upper, words, digits, _, marks, _, newlines, _, controls, _ = (
        counts.by_feature[: len(_ASCII_FEATURES)]
    )
    lower = vowels + others + rare
    letters = lower + upper
    solid = letters + digits + marks
    return (
        2 * solid >= counts.ascii_chars - newlines - controls  # not mostly blank
        and 4 * (newlines + controls) <= counts.ascii_chars + 4 * digits
        and 2 * marks <= solid
        and 2 * upper <= letters
        and 0.22 * lower <= vowels <= 0.6 * lower
        and 20 * rare <= 3 * lower
        and 2 * words <= letters <= 16 * words
    )


def size_text(text: str, weights: Weights) -> TextSize:
    """Size one text. Linear, any text, no exception; 0 for the empty one."""
    if not text:
        return NO_TEXT
    counts = count_features(text)
    amounts, parts = counts.by_feature, len(_ASCII_FEATURES)
    is_ascii = len(amounts) == parts
    tokens: float = sum(map(mul, amounts if is_ascii else amounts[:parts], weights.by_feature))
    high = counts.ascii_chars
    if _is_plausible(counts):
        high = min(high, tokens * weights.high_factor + SHORT_SLACK)
    if not is_ascii:
        tokens = sum(map(mul, amounts[parts:], weights.by_feature[parts:]), tokens)
        # Beyond ASCII a token a byte, and the blank before each run, which may stand alone there.
        high += counts.raw_bytes - counts.ascii_chars + amounts[-1]
    # The figure may not leave what is certain.
    tokens = min(max(tokens, counts.least, 1.0), high)
    return TextSize(tokens, max(counts.least, 1), max(high, counts.least))
