"""The size of a request in tokens: the quick figure of its shape, and when it must be counted.

Two stages (issue 2, contract section 2): every request gets the quick figure; the tokenizer is
asked only where a configured cap lies within the quick figure's error, since only there can it
change a decision. Held by tests/estimate/test_estimate.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from lifeboat.core.shape import Shape
from lifeboat.core.vocabulary import NO_TOKENS, Estimate, EstimateMethod


@dataclass(slots=True)
class Bounds:
    """The longest sequence has at least `low` and at most `high` tokens under the encoding."""

    low: int
    high: int


def bounds(shape: Shape) -> Bounds:
    """Return what is certain of the longest sequence; low == high where nothing is guessed."""
    if len(shape.sequences) == 1:
        only = shape.sequences[0]
        return Bounds(only.fixed + only.size.low, math.ceil(only.fixed + only.size.high))
    low, high = 0, 0.0
    for sequence in shape.sequences:
        low = max(low, sequence.fixed + sequence.size.low)
        high = max(high, sequence.fixed + sequence.size.high)
    return Bounds(low, math.ceil(high))


def quick(shape: Shape) -> Estimate:
    """Return the quick figure of a shape.

    `tokens` is the longest sequence, `total_tokens` the sum over all, `error` the larger of the
    distances to the two bounds, relative to `tokens` (the bounds themselves are not symmetric:
    hand `bounds(shape)` to `needs_count`, which then asks less often).
    """
    if not shape.sequences:
        return NO_TOKENS
    tokens = math.ceil(
        shape.sequences[0].tokens
        if len(shape.sequences) == 1
        else max([sequence.tokens for sequence in shape.sequences])
    )
    total = math.ceil(shape.total_tokens)
    around = bounds(shape)
    error = 0.0
    if tokens:
        error = max(around.high - tokens, tokens - around.low, 0) / tokens
    return Estimate(tokens, max(total, tokens), _method(shape), error)


def _method(shape: Shape) -> EstimateMethod:
    for sequence in shape.sequences:
        if sequence.texts:
            return EstimateMethod.QUICK
    if shape.upload_bytes:
        return EstimateMethod.BYTES
    return EstimateMethod.IDS if shape.has_ids else EstimateMethod.QUICK


BORDER = 0.15
"""Where `exact_border` asks the engine: an estimate within this part of its cap (issue 4).
The configured tokenizer has another vocabulary than the model, so its count is an estimate too."""


def near_border(estimate: Estimate, cap: int) -> bool:
    """Say whether an estimate lies so near to a cap that only the engine itself can tell.

    cap: in tokens; 0 is no cap. What is exact already is near nothing.
    """
    guessed = estimate.method in (EstimateMethod.QUICK, EstimateMethod.TOKENIZER)
    return guessed and cap > 0 and abs(estimate.tokens - cap) <= BORDER * cap


def needs_count(estimate: Estimate, caps: Iterable[int], around: Bounds | None = None) -> bool:
    """Whether the tokenizer could change which of `caps` cover the request.

    caps: configured input caps in tokens; 0 is no cap. around: the bounds, where they are known;
    else estimate.tokens * (1 +/- estimate.error). A cap of `low - 1` or less is exceeded for
    certain, one of `high` or more covers for certain; between them only a count can tell.
    """
    if estimate.method is not EstimateMethod.QUICK:
        return False
    if around is None:
        low = estimate.tokens * (1.0 - estimate.error)
        high = estimate.tokens * (1.0 + estimate.error)
    else:
        low, high = around.low, around.high
    return any(low <= cap < high for cap in caps if cap > 0)
