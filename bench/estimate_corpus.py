"""Text to fit and to judge the quick figure on: many scripts, code, encodings, and traps.

Everything comes from packages that install without a licence question:

    pip download --no-deps django sphinx            # unzip the wheels: locale files, code
    apt-get download gnome-user-docs manpages-{ja,zh,ru,de,pl} fortunes fortunes-min fortunes-{bg,de,es,it,ru,zh} \\
        debian-reference-{en,fr,ja,zh-cn,zh-tw} unicode-cldr-core   # dpkg-deb -x each

unpacked under one directory, which is the argument of bench/estimate.py.
"""

# ruff: noqa: E501 - a table reads by its rows; wrapped, it no longer does
from __future__ import annotations

import base64
import gzip
import html
import json
import random
import re
import string
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

ENGLISH_AND_CODE = frozenset({
    "gnome:C", "debref:en", "fortune:en", "pydoc", "captured", "code:py", "code:js", "code:c",
    "code:json",
})  # fmt: skip
"""Families that weigh more in the fit: most of what is sent to a model server."""
MUCH_USED = frozenset({
    "ru", "zh", "zh_CN", "zh_TW", "zh-cn", "zh-tw", "zh_Hans", "zh_Hant", "ja", "ko", "de", "fr", "es", "pt",
    "pt_BR", "it", "ar", "hi",
})  # fmt: skip
"""Languages that weigh more than the hundred others, for the same reason."""


def importance(family: str) -> float:
    """How much a family weighs in the fit."""
    if family in ENGLISH_AND_CODE:
        return 6.0
    kind, _, language = family.partition(":")
    return 3.0 if language in MUCH_USED and kind != "cldr" else 1.0


_FORTUNES = {"chinese": "zh", "song100": "zh", "tang300": "zh"}


def _messages(path: Path) -> str:
    """The translations of a gettext catalogue, a line each."""
    found: list[str] = []
    inside = False
    for line in path.read_text("utf-8", errors="replace").splitlines():
        if line.startswith("msgstr"):
            found.append("")
            inside, line = True, line[line.index('"') :]
        elif not (line.startswith('"') and inside):
            inside = False
            continue
        try:
            found[-1] += json.loads(line)
        except ValueError:
            continue
    return "\n".join(text for text in found[1:] if text)


def _plain(markup: str) -> str:
    text = re.sub(r"(?s)<(script|style).*?</\1>", "", markup)
    return re.sub(r"[ \t]*\n\s*\n+", "\n\n", html.unescape(re.sub(r"<[^>]+>", "", text)))


def _files(root: Path) -> Iterator[tuple[str, str]]:
    """(family, text) of every file that is understood."""
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        parts = path.parts
        try:
            if path.name == "django.po" or path.name == "sphinx.po":
                yield (
                    f"po:{parts[parts.index('locale' if 'locale' in parts else 'locales') + 1]}",
                    _messages(path),
                )
            elif path.suffix == ".page":
                yield f"gnome:{parts[parts.index('help') + 1]}", _plain(path.read_text("utf-8"))
            elif path.suffix == ".gz" and "man" in parts:
                yield (
                    f"man:{parts[parts.index('man') + 1]}",
                    gzip.decompress(path.read_bytes()).decode(),
                )
            elif path.suffix == ".html" and "debian-reference" in str(path):
                yield f"debref:{path.name.split('.')[-2]}", _plain(path.read_text("utf-8"))[:60_000]
            elif "fortunes" in parts and path.suffix not in (".dat", ".u8"):
                place = parts.index("fortunes") + 1
                language = (
                    parts[place] if len(parts) > place + 1 else _FORTUNES.get(path.name, "en")
                )
                if "off" not in parts:
                    yield f"fortune:{language}", path.read_text("utf-8")
            elif path.parent.name == "annotations" and "_" not in path.stem:
                yield f"cldr:{path.stem}", _plain(path.read_text("utf-8"))
            elif path.parent.name == "main" and path.suffix == ".xml":
                yield "xml:cldr", path.read_text("utf-8")[:40_000]
            elif path.suffix in (".js", ".css", ".json") and "django" in parts:
                yield f"code:{path.suffix[1:]}", path.read_text("utf-8")
        except (ValueError, IndexError, OSError):
            continue
    for topic in topics.values():
        yield "pydoc", topic
    for folder, pattern, family in (
        (Path(sysconfig.get_paths()["stdlib"]), "*.py", "code:py"),
        (Path("/usr/include"), "**/*.h", "code:c"),
        (Path("/usr/share/perl5"), "**/*.pm", "code:pl"),
    ):
        for path in sorted(folder.glob(pattern))[:80]:
            try:
                yield family, path.read_text("utf-8")
            except (ValueError, OSError):
                continue


def natural(
    root: Path, captured: list[str], rng: random.Random, per_family: int = 14, size: int = 4_000
) -> list[tuple[str, str]]:
    """Samples of about `size` characters, at most `per_family` of each family."""
    texts: defaultdict[str, list[str]] = defaultdict(list)
    for family, text in _files(root):
        if len(text) > 300 and len(texts[family]) < 60:
            texts[family].append(text)
    texts["captured"] = captured
    samples: list[tuple[str, str]] = []
    for family, found in sorted(texts.items()):
        whole = "\n\n".join(found)
        for _ in range(max(1, min(per_family, len(whole) // size))):
            start = rng.randrange(max(1, len(whole) - size))
            samples.append((family, whole[start : start + size]))
    return [(family, text) for family, text in samples if len(text) > 200]


_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
_FREQUENCIES = (12, 9, 8, 7.5, 7, 6.7, 6.3, 6, 6, 4.2, 4, 2.8, 2.8, 2.4, 2.2, 2.3, 2, 1.9, 1, 1.5,
                2, 0.8, 0.15, 0.1, 0.15, 0.07)  # fmt: skip


def synthetic(rng: random.Random, rounds: int = 8) -> list[tuple[str, str]]:
    """Encodings and numbers: not prose, and all of it is really sent."""
    alnum = string.ascii_letters + string.digits
    emoji = [*range(0x1F300, 0x1F650), *range(0x1F680, 0x1F6C5)]
    rows: list[tuple[str, str]] = []
    for _ in range(rounds):
        blob = rng.randbytes(3_000)
        words = (
            "".join(rng.choices(_LETTERS, _FREQUENCIES, k=rng.randrange(2, 10))) for _ in range(500)
        )
        rows += [
            ("base64", base64.b64encode(blob).decode()),
            ("hex", blob.hex()),
            ("random lower", "".join(rng.choices(string.ascii_lowercase, k=3_000))),
            ("random alnum", "".join(rng.choices(alnum, k=3_000))),
            ("random ascii", "".join(rng.choices(string.printable[:95], k=3_000))),
            ("random words", " ".join(words)),
            ("digits", "".join(rng.choices(string.digits, k=3_000))),
            ("numbers", " ".join(str(rng.randrange(10 ** rng.randrange(1, 9))) for _ in range(500))),
            ("floats", ",".join(repr(rng.random()) for _ in range(150))),
            ("uuids", " ".join(f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-{rng.getrandbits(48):012x}"
                               for _ in range(90))),
            ("emoji", "".join(chr(rng.choice(emoji)) for _ in range(1_000))),
            ("1 a line", "1\n" * 1_500),
        ]  # fmt: skip
    return rows


def hostile(rng: random.Random) -> list[tuple[str, str]]:
    """Text made to mislead a linear figure, upward or downward; judged, never fitted."""

    def random_from(first: int, last: int, count: int = 3_000) -> str:
        return "".join(chr(rng.randrange(first, last)) for _ in range(count))

    def words_of(letters: str, length: int, count: int = 3_000) -> str:
        return " ".join("".join(rng.choices(letters, k=length)) for _ in range(count))

    lower, upper, digits, marks = (
        string.ascii_lowercase, string.ascii_uppercase, string.digits, string.punctuation,
    )  # fmt: skip
    rows = [
        (f"{char!r} repeated", char * 20_000)
        for char in ("a", " ", "\n", "\t", "^", "=", "0", "好", "é")
    ]
    rows += [
        ("1\\n repeated", "1\n" * 30_000), ("a and space", "a " * 10_000), ("qz repeated", "qz" * 10_000),
        ("the repeated", " the" * 5_000), ("long word repeated", " antidisestablishmentarianism" * 500),
        ("consonant words", words_of("bcdfghlmnprst", 4)), ("rare words", words_of("jkqxzvw", 5)),
        ("two-letter words", words_of(lower, 2)), ("consonants", "".join(rng.choices("bcdfghlmnprst", k=9_000))),
        ("vowels", "".join(rng.choices("aeiou", k=9_000))), ("capitals", "".join(rng.choices(upper, k=9_000))),
        ("th he in", "".join(rng.choices(("th", "he", "in"), k=6_000))),
        ("mixed case", "".join(rng.choice(upper) + rng.choice(lower) for _ in range(6_000))),
        ("punctuation", "".join(rng.choices(marks, k=9_000))), ("punctuation, spaced", " ".join(rng.choices(marks, k=9_000))),
        ("digits, spaced", " ".join(rng.choices(digits, k=6_000))), ("digits, commas", ",".join(rng.choices(digits, k=6_000))),
        ("ids", ", ".join(str(rng.randrange(100_000)) for _ in range(3_000))),
        ("empty arrays", "[]," * 6_000), ("closing braces", "}" * 6_000), ("controls", random_from(1, 31)),
        ("accented", "".join(rng.choices("éàüñçøåß", k=6_000))),
        ("combining marks", "".join("a" + random_from(0x300, 0x36F, 4) for _ in range(2_000))),
        ("random Greek", random_from(0x370, 0x3FF)), ("random Cyrillic", random_from(0x400, 0x52F)),
        ("random Arabic", random_from(0x620, 0x6FF)), ("Syriac", random_from(0x710, 0x74A)),
        ("Latin-1 signs", random_from(0xA1, 0xBF)), ("Tibetan", random_from(0xF00, 0xFD4)),
        ("symbols", random_from(0x2000, 0x2BFF)), ("random Han", random_from(0x4E00, 0x9FFF)),
        ("random Hangul", random_from(0xAC00, 0xD7A3)), ("private use", random_from(0xE000, 0xF8FF)),
        ("variation selectors", random_from(0xFE00, 0xFE0F)), ("mathematical", random_from(0x1D400, 0x1D7FF)),
        ("astral Han", random_from(0x20000, 0x2A6DF)), ("whole plane", random_from(0x80, 0xD7FF)),
    ]  # fmt: skip
    return rows
