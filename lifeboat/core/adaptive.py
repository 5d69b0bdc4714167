"""A limit that finds the concurrency an engine can sustain, from how its requests end.

AIMD with two signs of too much. The first is the engine's own word, a 529. The second is the line
inside the engine, which forms before it refuses anybody: by Little's law the requests waiting there
are in-flight x (time to first token) / (time in all), and a time to first token counts only as far
as it exceeds the best one seen of late for prompts of that size. The policy decides a number and
nothing else: the gate enforces it, as one more input of `core.limits`.

Laws, held by tests/adaptive/test_adaptive.py: 1 <= limit <= bound; it rises only while it is used;
one decrease an epoch (what was granted before a decrease causes no second one); the same outcomes
give the same limits. Sources: docs/explanation/adaptive-limits.md.
"""

from __future__ import annotations

from math import inf, log2

from lifeboat.core.vocabulary import Outcome, Verdict

START_SHARE = 8
LEAST_START = 4
"""A slow start begins at an eighth of the bound, at least 4: three doublings from what the operator
believes in, and no flood at an engine that nothing is known of."""

BACKOFF = 0.9
"""What a refusal leaves of the limit (Netflix concurrency-limits, AIMDLimit: 0.9). TCP's half
would cost a third of the throughput until the next refusal; a 529 costs one retry, not a packet."""

LEAST_ROUND = 8
"""Answers in a round at the least: fewer say little about a mean."""

LINE_ALLOWED = 2.0
LINE_SHARE = 0.1
"""A line inside the engine of up to 2 requests, or a tenth of what is in flight, is what keeps its
seats filled between two answers (Gradient2 leaves a queue of the same kind)."""

SHARPEST_CUT = 0.5
MILDEST_CUT = 0.95
"""A line takes away its own share of the limit, within these bounds in one epoch."""

CLEAN_ROUNDS = 4
STEP_SHARE = 8
"""After 4 rounds without a sign of too much the step doubles, up to an eighth of the limit: an
engine that was given its seats back is followed within seconds, not seat by seat."""

BASE_WINDOW_S = 120.0
"""The best time to first token is that of the last two windows: an engine that became slower for
good is believed after four minutes."""

CLASSES_PER_DOUBLING = 4
"""Prompts of one class differ by at most a fifth in size, so by about that in prefill."""


class FirstTokens:
    """The best time to first token of late, by class of prompt size. Bounded by the classes."""

    __slots__ = ("_began_at", "_best", "_earlier")

    def __init__(self) -> None:
        self._best: dict[int, float] = {}
        self._earlier: dict[int, float] = {}
        self._began_at = -inf

    def excess_s(self, tokens: int, first_token_s: float, now: float) -> float:
        """Record a time to first token; return the seconds by which it exceeds the best."""
        if now - self._began_at > BASE_WINDOW_S:
            self._earlier, self._best = self._best, {}
            self._began_at = now
        size = int(log2(max(tokens, 1)) * CLASSES_PER_DOUBLING)
        if first_token_s < self._best.get(size, inf):
            self._best[size] = first_token_s
        # A longer prompt that was answered faster says as much of a shorter one.
        best_s = first_token_s
        for window in (self._best, self._earlier):
            for other, seen_s in window.items():
                if other >= size and seen_s < best_s:
                    best_s = seen_s
        return first_token_s - best_s


class _Round:
    """What the answers of one round add up to; only requests granted within it count."""

    __slots__ = ("answers", "began_at", "full", "held_s", "in_flight", "streamed", "waited_s")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.answers = 0
        self.full = 0
        self.in_flight = 0
        self.streamed = 0
        self.waited_s = 0.0
        self.held_s = 0.0


class AdaptiveLimit:
    """The limit of one backend, learned.

    What: AIMD on refusals and on the engine's own line, with slow start. When: the engine's seats
    are unknown, change, or are shared with others. Cost: a few sums an answer, a hundred floats.
    Weakness: without streamed answers only refusals tell, so an engine that neither streams nor
    refuses is taken to its bound.

    bound: the configured limit; 0 (a disabled gate) bounds nothing.
    """

    __slots__ = (
        "_bound",
        "_clean",
        "_decreased_at",
        "_first",
        "_limit",
        "_round",
        "_slow",
        "_step",
    )

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._first = FirstTokens()
        self._limit = 1.0
        self._slow = True
        self._step = 1.0
        self._clean = 0
        self._decreased_at = -inf
        self._round = _Round(-inf)
        self.restart()

    @property
    def limit(self) -> int:
        """The most requests in flight, at least 1."""
        return int(self._limit)

    @property
    def starting(self) -> bool:
        """Whether it is in slow start: no sign of too much has been seen yet."""
        return self._slow

    def rebound(self, bound: int) -> None:
        """Take a changed bound; what was learned stays, within it."""
        if bound != self._bound:
            self._bound = bound
            self._limit = self._bounded(self._limit)

    def restart(self) -> None:
        """Begin a slow start: the engine is new, or came back and may hold less than before."""
        self._limit = self._bounded(max(LEAST_START, self._bound // START_SHARE))
        self._slow = True
        self._step = 1.0
        self._clean = 0
        self._round = _Round(-inf)

    def observe(
        self, outcome: Outcome, *, granted_at: float, in_flight: int, tokens: int, now: float
    ) -> bool:
        """Take in the end of a request; return whether the limit changed.

        in_flight: what is left at the backend. tokens: the estimate of its prompt.
        """
        before = self.limit
        if outcome.verdict is Verdict.SATURATED:
            self._refused(granted_at, in_flight, now)
        elif outcome.verdict is Verdict.ANSWERED and (outcome.status or 200) < 400:
            self._answered(outcome.first_token_s, granted_at, in_flight, tokens, now)
        return self.limit != before

    def _refused(self, granted_at: float, in_flight: int, now: float) -> None:
        """529: it holds no more than what is in flight, and a tenth less is safe."""
        held = min(self._limit, float(in_flight))
        if granted_at < self._decreased_at:
            # Of the burst that was cut already: it corrects the level, it is no second sign.
            self._limit = self._bounded(held)
            return
        self._decrease(held * BACKOFF, now)

    def _answered(
        self,
        first_token_s: float | None,
        granted_at: float,
        in_flight: int,
        tokens: int,
        now: float,
    ) -> None:
        full = in_flight + 1 >= self.limit
        if self._slow and full:
            self._limit = self._bounded(self._limit + 1.0)
        this = self._round
        excess_s = None
        if first_token_s is not None:
            excess_s = self._first.excess_s(tokens, first_token_s, now)
        if granted_at < this.began_at:
            return
        this.answers += 1
        this.full += full
        this.in_flight += in_flight + 1
        if excess_s is not None:
            this.streamed += 1
            this.waited_s += excess_s
            this.held_s += now - granted_at
        if this.answers >= max(LEAST_ROUND, self.limit // 2):
            self._end_round(this, now)

    def _end_round(self, this: _Round, now: float) -> None:
        in_flight = this.in_flight / this.answers
        waiting = 0.0
        if this.streamed >= LEAST_ROUND and this.held_s > 0.0:
            waiting = this.waited_s / this.held_s
        if waiting * in_flight > max(LINE_ALLOWED, LINE_SHARE * in_flight):
            cut = min(max(1.0 - waiting, SHARPEST_CUT), MILDEST_CUT)
            self._decrease(min(self._limit, in_flight) * cut, now)
            return
        if not self._slow and 2 * this.full >= this.answers:
            self._limit = self._bounded(self._limit + self._step)
            self._clean += 1
            if self._clean % CLEAN_ROUNDS == 0:
                self._step = max(1.0, min(self._step * 2.0, self._limit / STEP_SHARE))
        self._round = _Round(now)

    def _decrease(self, to: float, now: float) -> None:
        self._limit = self._bounded(to)
        self._slow = False
        self._step = 1.0
        self._clean = 0
        self._decreased_at = now
        self._round = _Round(now)

    def _bounded(self, limit: float) -> float:
        most = float(self._bound) if self._bound > 0 else inf
        return max(1.0, min(limit, most))
