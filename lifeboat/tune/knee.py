"""Which concurrency to set, from what the steps measured. Pure.

The knee is the smallest concurrency whose throughput is at least 95 % of the best one: beyond it,
requests only wait inside the server instead of in a queue that can be seen. Held by
tests/tune/test_knee.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

ENOUGH = 0.95
"""Share of the best throughput that is as good as the best: measured steps differ by as much."""

WORSE = 0.9
"""A step with less than this of the knee's throughput is past a peak, not a plateau that was
measured badly."""

REFUSALS_ALLOWED = 0.02
"""A step in which more of the requests than this were refused is beyond what the server takes."""

GAIN = 1.05
PLATEAU = 2
"""The ladder ends when two doublings in a row brought less than 5 %."""

TTLS_S = (10, 30, 60, 120, 600)
"""The TTLs that the advice speaks of."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one concurrency measured.

    tokens_per_s: output tokens, all requests together. answers_per_s: complete answers.
    first_token_s, gap_s: medians, of the time to first token and of the time between two tokens of
    one answer; None where nothing was seen. refused: requests turned away for load. failed: lost
    or answered with another error.
    """

    concurrency: int
    tokens_per_s: float
    answers_per_s: float
    first_token_s: float | None
    first_token_p95_s: float | None
    gap_s: float | None
    answers: int
    refused: int
    failed: int

    @property
    def overloaded(self) -> bool:
        """Whether the server turned requests away at this concurrency."""
        return self.refused > REFUSALS_ALLOWED * max(self.answers + self.refused, 1)


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set, and why.

    knee: the step it rests on. best_tokens_per_s: of any step. slots: what the server itself says
    it has, None where it tells nothing. depths: TTL in seconds -> requests that drain within it.
    """

    max_concurrency: int
    knee: Step
    best_tokens_per_s: float
    slots: int | None
    why: str
    depths: dict[int, int]
    climbing: bool
    """The last step was still the best by far: the ladder was too short."""


def ladder(most: int) -> list[int]:
    """Return 1, 2, 4, 8 ... up to and with `most`."""
    steps = [1]
    while steps[-1] < most:
        steps.append(min(steps[-1] * 2, most))
    return steps


def flat(steps: Sequence[Step]) -> bool:
    """Return whether going on up the ladder is pointless."""
    if steps and steps[-1].overloaded:
        return True
    if len(steps) <= PLATEAU:
        return False
    earlier = max(step.tokens_per_s for step in steps[:-PLATEAU])
    return all(step.tokens_per_s < earlier * GAIN for step in steps[-PLATEAU:])


def knee(steps: Sequence[Step]) -> Step | None:
    """Return the smallest step as good as the best; None where nothing was answered."""
    fit = [step for step in steps if not step.overloaded and step.tokens_per_s > 0.0]
    if not fit:
        return None
    best = max(step.tokens_per_s for step in fit)
    good = [step for step in fit if step.tokens_per_s >= ENOUGH * best]
    return min(good, key=lambda step: step.concurrency)


def between(steps: Sequence[Step]) -> int | None:
    """Return a concurrency where the true knee may lie; None = none left.

    Where the next step up is clearly worse, a better one may lie between the two; else halfway
    below, where a smaller one may be as good.
    """
    found = knee(steps)
    if found is None:
        return None
    above = min(
        (step for step in steps if step.concurrency > found.concurrency),
        key=lambda step: step.concurrency,
        default=None,
    )
    if above is not None and (above.overloaded or above.tokens_per_s < WORSE * found.tokens_per_s):
        middle = (found.concurrency + above.concurrency) // 2
        if middle > found.concurrency:
            return middle
    below = max((s.concurrency for s in steps if s.concurrency < found.concurrency), default=0)
    middle = (below + found.concurrency) // 2
    return middle if below < middle < found.concurrency else None


def advise(steps: Sequence[Step], slots: int | None) -> Advice | None:
    """Return what to set; None where no step was answered."""
    found = knee(steps)
    if found is None:
        return None
    best = max(step.tokens_per_s for step in steps if not step.overloaded)
    limit = found.concurrency if slots is None else min(found.concurrency, slots)
    last = max(steps, key=lambda step: step.concurrency)
    in_slots = slots is None or found.concurrency < slots
    climbing = found is last and len(steps) > 1 and not last.overloaded and in_slots
    return Advice(
        max_concurrency=limit,
        knee=found,
        best_tokens_per_s=best,
        slots=slots,
        why=_why(found, best, steps, slots, climbing=climbing),
        depths={ttl: max(1, floor(found.answers_per_s * ttl)) for ttl in TTLS_S},
        climbing=climbing,
    )


def _why(
    found: Step, best: float, steps: Sequence[Step], slots: int | None, *, climbing: bool
) -> str:
    share = found.tokens_per_s / best
    text = (
        f"{found.concurrency} at once give {found.tokens_per_s:,.0f} tokens/s, {share:.0%} of the "
        "best that any step gave"
    )
    above = [step for step in steps if step.concurrency > found.concurrency]
    if climbing:
        return f"{text}; it was still rising: measure further with --up-to"
    if above:
        last = max(above, key=lambda step: step.concurrency)
        if last.overloaded:
            text += f"; at {last.concurrency} the server refused {last.refused} requests"
        elif last.first_token_s is not None and found.first_token_s:
            more = last.first_token_s / found.first_token_s
            text += f"; at {last.concurrency} the first token takes {more:.1f} times as long"
            if last.tokens_per_s < WORSE * found.tokens_per_s:
                text += (
                    f", and all together get {last.tokens_per_s / found.tokens_per_s:.0%} as much"
                )
    if slots is not None and slots < found.concurrency:
        text += f"; the server says that it has {slots} slots, and more would wait inside it"
    return text
