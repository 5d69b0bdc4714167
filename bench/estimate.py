"""Fit the quick figure, and print how far it and tiktoken are from the truth.

    python -m bench.estimate CORPUS --fit              # fit weights for both encodings, print them
    python -m bench.estimate CORPUS                    # errors of the weights in the code
    python -m bench.estimate --gguf http://127.0.0.1:8081   # errors against a real model's /tokenize
    python -m bench.estimate --speed                   # CPU per request and per megabyte

CORPUS is a directory as bench/estimate_corpus.py describes. Figures quoted in
docs/explanation/estimate.md come from here.
"""

# ruff: noqa: E501 - a table reads by its rows; wrapped, it no longer does
from __future__ import annotations

import argparse
import json
import random
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import estimate_corpus as corpus
from lifeboat.core.estimate import quick
from lifeboat.core.protocol import Protocol
from lifeboat.core.shape import read_shape
from lifeboat.core.textsize import FEATURES, Weights, count_features, size_text
from lifeboat.core.weights import WEIGHTS
from lifeboat.counting.encodings import load_encoding
from tests.shared_files import shared_path

FLOORS = {
    "th": -0.5, "consonant": 0.16, "vowel": 0.12, "punctuation": 0.2, "newline": 0.02, "latin1_sign": 0.5,
    "syriac": 1.6, "e0_other": 2.0, "symbol": 0.6, "full_width": 0.8,
}  # fmt: skip
"""Least weights: classes that the corpus hardly has, or only in forms that merge well, and the one
negative weight (two letters of `th` never fall below zero together)."""

Row = tuple[str, list[int], int, str]


def captured_bodies() -> list[dict[str, object]]:
    lines = shared_path("traces/captured_requests.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


_PROTOCOLS = {
    "chat-completions": Protocol.CHAT,
    "responses": Protocol.RESPONSES,
    "anthropic": Protocol.MESSAGES,
}


def captured_texts() -> list[str]:
    """The text that each captured request would put before a model."""
    found: list[str] = []
    for row in captured_bodies():
        shape = read_shape(row["body"], _PROTOCOLS[str(row["api"])])
        texts = [text for sequence in shape.sequences for text in sequence.texts]
        found.append("\n".join(text for text in texts if isinstance(text, str)))
    return found


def _rows(samples: list[tuple[str, str]], count: Callable[[str], int]) -> list[Row]:
    rows: list[Row] = []
    for family, text in samples:
        counts = count_features(text).by_feature
        counts += [0] * (len(FEATURES) - len(counts))
        rows.append((family, counts, count(text), text))
    return [row for row in rows if row[2] > 50]


def _solve(rows: list[tuple[float, list[int], int]]) -> list[float]:
    """Least squares of relative errors, each weight at or above its floor (coordinate descent)."""
    size = len(FEATURES)
    gram = [[0.0] * size for _ in range(size)]
    target = [0.0] * size
    for weight, counts, true in rows:
        scaled = [(i, amount / true) for i, amount in enumerate(counts) if amount]
        for i, a in scaled:
            target[i] += weight * a
            for j, b in scaled:
                gram[i][j] += weight * a * b
    beta = [max(0.0, FLOORS.get(name, 0.0)) for name in FEATURES]
    for _ in range(400):
        for i, name in enumerate(FEATURES):
            if gram[i][i] == 0.0:
                continue
            rest = sum(gram[i][j] * beta[j] for j in range(size) if j != i)
            beta[i] = max(FLOORS.get(name, 0.0), (target[i] - rest) / (gram[i][i] + 1e-4))
    return beta


def fit(rows: list[Row]) -> list[float]:
    """Fit on two rows of three, with larger errors weighing more in three further rounds."""
    sizes: defaultdict[str, int] = defaultdict(int)
    for family, *_ in rows:
        sizes[family] += 1
    base = [
        (sizes[family] ** -0.5 * corpus.importance(family), counts, true)
        for index, (family, counts, true, _) in enumerate(rows)
        if index % 3
    ]
    beta = _solve(base)
    for _ in range(3):
        reweighted: list[tuple[float, list[int], int]] = []
        for weight, counts, true in base:
            miss = sum(b * c for b, c in zip(beta, counts, strict=True)) / true - 1.0
            reweighted.append((weight * (1.0 + min((miss / 0.15) ** 2, 16.0)), counts, true))
        beta = _solve(reweighted)
    return beta


def _spread(ratios: Sequence[float]) -> str:
    ordered = sorted(ratios)
    marks = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
    return "  ".join(
        f"p{mark * 100:g} {ordered[round(mark * (len(ordered) - 1))]:.2f}" for mark in marks
    )


def report(rows: list[Row], weights: Weights, held_out_only: bool) -> None:
    """Print figure / true for natural rows, by family, and the bounds broken (must be none)."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    broken = 0
    for index, (family, _, true, text) in enumerate(rows):
        if held_out_only and index % 3:
            continue
        size = size_text(text, weights)
        ratios[family].append(size.tokens / true)
        if not size.low <= true <= size.high:
            broken += 1
            print(f"  OUT OF BOUNDS {family}: {size.low} <= {true} <= {size.high:.0f}")
    everything = [ratio for found in ratios.values() for ratio in found]
    print(
        f"{weights.encoding}: figure / true over {len(everything)} samples: {_spread(everything)}"
    )
    print(f"  outside its bounds: {broken}")
    for family, found in sorted(ratios.items(), key=lambda item: sum(item[1]) / len(item[1])):
        mean = sum(found) / len(found)
        if not 0.8 <= mean <= 1.2 or family in corpus.ENGLISH_AND_CODE or ":" not in family:
            print(
                f"  {family:24} mean {mean:.2f}  min {min(found):.2f}  max {max(found):.2f}  n {len(found)}"
            )


def report_gguf(url: str) -> None:
    """Print how far the quick figure and cl100k_base are from a real model's tokenizer."""
    encoding = load_encoding("cl100k_base")

    def real(text: str) -> int:
        body = json.dumps({"content": text, "add_special": False}).encode()
        request = urllib.request.Request(
            f"{url}/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return len(json.load(answer)["tokens"])

    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for text in captured_texts():
        true = real(text)
        if true >= 20:
            by_kind["quick"].append(size_text(text, WEIGHTS["cl100k_base"]).tokens / true)
            by_kind["cl100k_base"].append(len(encoding.encode_ordinary(text)) / true)
    for kind, ratios in by_kind.items():
        print(f"{kind} / the model's own, {len(ratios)} captured requests: {_spread(ratios)}")


def report_speed() -> None:
    """Print CPU per typical request, and per megabyte of text."""
    prompt = " ".join(
        f"Sentence {i} says that the quick brown fox jumps over lazy dogs." for i in range(32)
    )
    body: dict[str, object] = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": prompt},
        ],
    }
    for label, call, runs, unit in (
        ("shape + quick of a 2 KB chat", lambda: quick(read_shape(body, Protocol.CHAT)), 3_000, "us"),
        ("size_text, 1 MB English", lambda: size_text(prompt * 500, WEIGHTS["cl100k_base"]), 5, "ms"),
        ("size_text, 1 MB Chinese", lambda: size_text("敏捷的棕色狐狸跳过了懒狗。" * 27_000, WEIGHTS["cl100k_base"]), 5, "ms"),
    ):  # fmt: skip
        call()
        began = time.process_time()
        for _ in range(runs):
            call()
        spent = (time.process_time() - began) / runs
        print(f"{label}: {spent * (1e6 if unit == 'us' else 1e3):.1f} {unit}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--gguf", metavar="URL")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    if options.speed:
        report_speed()
    if options.gguf:
        report_gguf(options.gguf)
    if options.corpus is None:
        sys.exit(0)
    rng = random.Random(7)
    samples = corpus.natural(options.corpus, captured_texts(), rng) + corpus.synthetic(rng)
    rng.shuffle(samples)  # or a family would be held out as a whole: every third is
    for name, weights in WEIGHTS.items():
        encoding = load_encoding(name)

        def count(text: str, encode: Callable[[str], list[int]] = encoding.encode_ordinary) -> int:
            return len(encode(text))

        rows = _rows(samples, count)
        if options.fit:
            beta = fit(rows)
            print(f"{name}:", "(" + ", ".join(f"{value:.3f}" for value in beta) + ")")
            weights = Weights(name, tuple(beta), weights.high_factor)
        print("-- held out")
        report(rows, weights, held_out_only=True)
        print("-- hostile")
        report(_rows(corpus.hostile(rng), count), weights, held_out_only=False)


if __name__ == "__main__":
    main()
