"""How long requests waited, and how fast leases end: bounded records behind two figures.

`WaitRecord` gives the percentiles of the state (contract, section 7: requests that were parked and
granted or expired, last 5 minutes); `DrainRate` gives the rate behind `Retry-After` (section 5:
left out where it would be a guess).

Invariants, held by tests/core/test_waits.py: adding is O(1) and memory is bounded whatever the
load; sorting happens at a read and only when something changed; no figure is ever negative, even
when a clock steps back; time in which nothing pressed on a pool never lowers its drain rate.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 300.0
"""Percentiles look this far back: the contract's 5 minutes."""

_SLICES = 30
"""Pieces of the window: it moves in steps of a thirtieth (10 s)."""

_SLICE_SAMPLES = 128
"""Samples kept per slice. With 31 slices alive that is 3,968 samples, about 130 KB, at the most."""

Percentiles = tuple[float, float, float]
"""p50, p95, p99 in seconds."""

_NO_WAITS: Percentiles = (0.0, 0.0, 0.0)


class _Slice:
    """The waits of one piece of the window; each kept sample stands for `stride` of them."""

    __slots__ = ("index", "samples", "skip", "stride")

    def __init__(self, index: int) -> None:
        self.index = index
        self.samples: list[float] = []
        self.stride = 1
        self.skip = 0


class WaitRecord:
    """Waits over a sliding window, with percentiles on demand.

    Every sample is kept up to 128 per 10 s. Above that a slice thins itself evenly: it drops every
    second sample it has and from then on keeps every second (fourth, eighth...) new one, each with
    its weight. So a busy record still covers the whole window, in proportion, and only loses
    resolution: at 1,000 waits a second about 3,000 samples stand for 300,000.

    A sample is forgotten with its slice, between 290 and 300 s after it was added.
    """

    __slots__ = ("_current", "_read", "_read_at_index", "_slice_s", "_slices")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """window_s: how far back percentiles look, in seconds."""
        self._slice_s = window_s / _SLICES
        self._slices: deque[_Slice] = deque()
        self._current: _Slice | None = None
        self._read: Percentiles | None = _NO_WAITS
        self._read_at_index = 0

    def add(self, wait_s: float, now: float) -> None:
        """Record one wait in seconds; a negative one (a clock that stepped back) counts as 0."""
        piece = self._current
        index = int(now / self._slice_s)
        if piece is None or index > piece.index:
            piece = self._open_slice(index)
        self._read = None
        if piece.skip:
            piece.skip -= 1
            return
        piece.skip = piece.stride - 1
        samples = piece.samples
        samples.append(wait_s if wait_s > 0.0 else 0.0)
        if len(samples) == _SLICE_SAMPLES:
            del samples[1::2]
            piece.stride *= 2
            # The last one kept was an odd one, now gone: the next to keep is a full stride after
            # the last survivor, half of which has passed.
            piece.skip = piece.stride // 2 - 1

    def percentiles(self, now: float) -> Percentiles:
        """Return p50, p95 and p99 in seconds by nearest rank; zeros where nothing waited."""
        index = int(now / self._slice_s)
        if self._read is not None and index <= self._read_at_index:
            return self._read
        self._forget(index)
        self._read = _weighted_percentiles(self._slices)
        self._read_at_index = index
        return self._read

    def _open_slice(self, index: int) -> _Slice:
        self._forget(index)
        piece = self._current = _Slice(index)
        self._slices.append(piece)
        return piece

    def _forget(self, index: int) -> None:
        """Drop the slices that began a whole window ago or earlier."""
        slices = self._slices
        while slices and slices[0].index <= index - _SLICES:
            slices.popleft()
        if not slices:
            self._current = None


def _weighted_percentiles(slices: deque[_Slice]) -> Percentiles:
    pairs = sorted((wait_s, piece.stride) for piece in slices for wait_s in piece.samples)
    if not pairs:
        return _NO_WAITS
    total = sum(weight for _, weight in pairs)
    found: list[float] = []
    targets = iter((0.50 * total, 0.95 * total, 0.99 * total))
    target = next(targets)
    seen = 0
    for wait_s, weight in pairs:
        seen += weight
        while seen >= target:
            found.append(wait_s)
            target = next(targets, math.inf)
    return found[0], found[1], found[2]


RATE_BUSY_S = 60.0
"""The drain rate looks back over this much busy time: long enough to be steady, short enough to
follow a backend that slowed down."""

RATE_MIN_SAMPLES = 5
"""Fewer finishes than this are no rate but a guess. Looking back is stretched beyond
`RATE_BUSY_S` to reach it, since a pool of long answers ends only a few a minute."""

RATE_MAX_AGE_S = 600.0
"""Nothing older than this says anything about now."""

_BUCKET_BUSY_S = 1.0
_BUCKET_AGE_S = 10.0
"""Finishes are summed until they cover this much busy time, or this much time at all: some 120
sums at the most, whatever the rate."""

_SAME_BREATH = 0.1
"""Leases that end together when nobody is parked: the first ends at a full backend, the others a
moment later at one with free slots. They count when that moment is within this part of the time
they were held, or a batch of four would be read as one finish."""


class _Bucket:
    """Some finishes in a row: how many, over how much busy time, and when the first was."""

    __slots__ = ("busy_s", "count", "first_at")

    def __init__(self, first_at: float) -> None:
        self.count = 0
        self.busy_s = 0.0
        self.first_at = first_at


class DrainRate:
    """Leases finished per second *while there was no room*: how fast a queue would drain.

    A plain rate over the wall clock would read a quiet night as a slow pool and answer the first
    burst of the morning with the longest Retry-After. So only gaps between finishes that end with
    a full backend count (and what ends in the same breath), and of such a gap no more than the
    lease that ended it was held: what lies before was not busy. Counted are the newest 60 s of
    busy time, stretched until 5 finishes are in it, none older than 10 minutes.

    It is a figure of the pool's own finishes, so a pool that shares its backends reads its share.

    seen: finishes counted since the record was last empty, those that have left the window
    included: what a judgement may ask for before it trusts the rate.
    """

    __slots__ = ("_buckets", "_busy_s", "_count", "_full_at", "_last_at", "seen")

    def __init__(self) -> None:
        self.seen = 0
        self._buckets: deque[_Bucket] = deque()
        self._count = 0
        self._busy_s = 0.0
        self._full_at = -math.inf
        self._last_at = -math.inf

    def finished(self, now: float, opened_at: float, full: bool) -> None:
        """Record the end of a lease of this pool.

        opened_at: clock seconds at which it was granted. full: just before it ended, its backend
        had no free slot, or a request of this pool was parked.
        """
        held_s = now - opened_at
        gap_s = min(now - self._last_at, held_s)
        self._last_at = now
        if full:
            self._full_at = now
        elif now - self._full_at > _SAME_BREATH * held_s:
            return
        buckets = self._buckets
        bucket = buckets[-1] if buckets else None
        if (
            bucket is None
            or bucket.busy_s >= _BUCKET_BUSY_S
            or now - bucket.first_at >= _BUCKET_AGE_S
        ):
            bucket = _Bucket(now)
            buckets.append(bucket)
            self._trim(now)
        gap_s = gap_s if gap_s > 0.0 else 0.0
        bucket.count += 1
        bucket.busy_s += gap_s
        self._count += 1
        self._busy_s += gap_s
        self.seen += 1

    def forget(self) -> None:
        """Start anew: what was measured under other limits says nothing about these.

        When the last lease ended stays known, or the next one would count its whole hold as busy.
        """
        self._buckets.clear()
        self._count = self.seen = 0
        self._busy_s = 0.0
        self._full_at = -math.inf

    def per_second(self, now: float, pressed_for_s: float = 0.0) -> float | None:
        """Return finishes per second under pressure, or None where too few were seen to tell.

        pressed_for_s: how long the oldest parked request has been waiting (0 when nothing is
        parked). A silence since the last finish counts as far as somebody waited through it, so
        that a pool that hangs stops promising its old rate.
        """
        self._trim(now)
        if self._count < RATE_MIN_SAMPLES:
            return None
        silence_s = min(now - self._last_at, pressed_for_s)
        busy_s = self._busy_s
        # Half a mean gap passes since the last finish in any case: only more than a gap is news.
        if silence_s > busy_s / self._count:
            busy_s += silence_s
        return self._count / busy_s if busy_s > 0.0 else None

    def _trim(self, now: float) -> None:
        """Forget what is too old, and what the newest minute of busy time does not need."""
        buckets = self._buckets
        while buckets:
            oldest = buckets[0]
            enough = (
                self._busy_s - oldest.busy_s >= RATE_BUSY_S
                and self._count - oldest.count >= RATE_MIN_SAMPLES
            )
            if not enough and now - oldest.first_at <= RATE_MAX_AGE_S:
                break
            buckets.popleft()
            self._count -= oldest.count
            self._busy_s -= oldest.busy_s
        if not buckets:
            # Sums of floats drift by rounding: an empty record starts from a true zero.
            self._busy_s = 0.0
            self.seen = 0


RETRY_AFTER_MAX_S = 119.0
"""The longest Retry-After ever sent: contract, section 5 (1..119 whole seconds)."""


RETRY_JITTER = 0.25
"""Those refused together are told times up to this part apart, or they would come back together."""


def expected_wait_s(depth: int, rate_per_s: float | None) -> float | None:
    """Return the seconds after which one more request would be served behind `depth` parked ones.

    None where the rate is unknown or zero. A mean over the pool: smaller or more urgent requests
    are served sooner, others later.
    """
    if rate_per_s is None or not rate_per_s > 0.0:
        return None
    return (max(depth, 0) + 1) / rate_per_s


def retry_after_s(depth: int, rate_per_s: float | None, chance: float = 0.0) -> float | None:
    """Return the expected wait, up to a quarter later, and at most 119 s.

    None where it is unknown: a guess is not sent. chance: in [0, 1), spreads the answers; where
    the most cuts them off, downwards from there. The edge rounds up to whole seconds for
    `Retry-After`, and to milliseconds for `retry-after-ms`.
    """
    wait_s = expected_wait_s(depth, rate_per_s)
    if wait_s is None:
        return None
    spread_s = min(wait_s, RETRY_AFTER_MAX_S) * (1.0 + RETRY_JITTER * chance)
    return spread_s if spread_s <= RETRY_AFTER_MAX_S else 2 * RETRY_AFTER_MAX_S - spread_s
