"""The exact count of a request, off the event loop, no longer than it takes to decide.

Invariants, held by tests/estimate/test_counter.py:
- `count` never raises for a text and never blocks the loop for more than a millisecond or so: a
  small text is counted in place, a larger one in a worker thread (tiktoken releases the
  interpreter lock), in slices, and stops once above `stop_above`.
- At most `workers` counts run and `backlog` wait; beyond that, or before the vocabulary is loaded,
  the answer is None and the quick figure stands.
- A caller that is cancelled takes its count with it at the next slice.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

from lifeboat.core.longvalue import LongText, pieces_of
from lifeboat.core.shape import Sequence, Shape
from lifeboat.core.vocabulary import Estimate, EstimateMethod
from lifeboat.counting.encodings import load_encoding

if TYPE_CHECKING:
    from tiktoken import Encoding

IN_PLACE_CHARS = 4_096
"""Texts of no more characters are counted on the loop: 0.3 to 0.8 ms, less than a thread costs."""
SLICE_CHARS = 65_536
"""Encoded at once, at most. tiktoken panics on a run of 700,000 blanks (issue 245 there), and a
slice bounds what is counted past `stop_above`."""
_CUT_BACK_CHARS = 512
"""How far a cut moves back to the last blank: a word cut in two counts as two."""


class TokenCounter:
    """Counts shapes with one encoding.

    Call `load` in a thread at start-up; until it returns, `count` gives None.
    """

    def __init__(self, encoding_name: str, workers: int = 1, backlog: int = 32) -> None:
        """encoding_name: one of ENCODING_NAMES. workers: threads; more than the cores is waste.
        backlog: counts that may wait for a thread.
        """
        self._name = encoding_name
        self._encoding: Encoding | None = None
        self._executor = ThreadPoolExecutor(workers, "lifeboat-count")
        self._places = workers + backlog
        self._busy = 0
        self._closed = Event()

    @property
    def is_loaded(self) -> bool:
        """Whether the vocabulary is there."""
        return self._encoding is not None

    @property
    def busy(self) -> int:
        """Counts that run or wait in the pool."""
        return self._busy

    def load(self) -> None:
        """Read the vocabulary: 0.2 to 0.7 s of CPU, 35 to 75 MB. Blocks; no network."""
        self._encoding = load_encoding(self._name)

    async def count(self, shape: Shape, stop_above: int) -> Estimate | None:
        """Count a shape, or return None when the quick figure must stand.

        stop_above: the largest cap in tokens; a figure above it is a minimum, since counting
        stopped there.
        """
        encoding = self._encoding
        if encoding is None or self._closed.is_set():
            return None
        if _is_short(shape):
            return _count(encoding, shape, stop_above, self._closed)
        if self._busy >= self._places:
            return None
        self._busy += 1
        gone = Event()
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._executor, _count, encoding, shape, stop_above, gone, self._closed
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed.is_set() and task is not None and not task.cancelling():
                return None  # the pool was closed under it: nobody asked this request to stop
            raise
        finally:
            gone.set()
            self._busy -= 1

    def close(self) -> None:
        """Stop what runs at its next slice and take nothing more."""
        self._closed.set()
        self._executor.shutdown(wait=False, cancel_futures=True)


def _is_short(shape: Shape) -> bool:
    chars = 0
    for sequence in shape.sequences:
        for text in sequence.texts:
            if isinstance(text, LongText):
                return False
            chars += len(text) + 16  # each call costs about as much as 16 characters
            if chars > IN_PLACE_CHARS:
                return False
    return True


def _count(encoding: Encoding, shape: Shape, stop_above: int, *stops: Event) -> Estimate | None:
    """Count the sequences that may be the longest; the rest keep their quick figure in the sum."""
    longest = 0
    total = shape.total_tokens
    exceeded = False
    for sequence in sorted(shape.sequences, key=_upper, reverse=True):
        if exceeded or _upper(sequence) <= longest:
            break
        counted = _count_sequence(encoding, sequence, stop_above, stops)
        if counted is None:
            return None
        exceeded = counted > stop_above
        if exceeded:
            # Counting stopped there: what is known is that it is more.
            counted = max(counted, math.ceil(sequence.tokens))
        longest = max(longest, counted)
        total += counted - sequence.tokens
    return Estimate(longest, max(longest, math.ceil(total)), EstimateMethod.TOKENIZER)


def _upper(sequence: Sequence) -> float:
    return sequence.fixed + sequence.size.high


def _count_sequence(
    encoding: Encoding, sequence: Sequence, stop_above: int, stops: tuple[Event, ...]
) -> int | None:
    """Tokens of one sequence, a figure above `stop_above`, or None when told to stop."""
    tokens = sequence.fixed
    for text in sequence.texts:
        for piece in _slices(text):
            if any(stop.is_set() for stop in stops):
                return None
            counted = _encode(encoding, piece)
            if counted is None:
                return None
            tokens += counted
            if tokens > stop_above:
                return tokens
    return tokens


def _slices(text: str | LongText) -> Iterator[str]:
    """Cut a text into slices, behind a blank where one is near."""
    for piece in pieces_of(text):
        at = 0
        while len(piece) - at > SLICE_CHARS:
            cut = piece.rfind(" ", at + SLICE_CHARS - _CUT_BACK_CHARS, at + SLICE_CHARS)
            cut = cut if cut > 0 else at + SLICE_CHARS
            yield piece[at:cut]
            at = cut
        yield piece[at:]


def _encode(encoding: Encoding, piece: str) -> int | None:
    """Tokens of one slice; text that looks like a special token is text."""
    try:
        return len(encoding.encode_ordinary(piece))
    except BaseException as fault:
        # A panic in tiktoken's Rust is a BaseException; here it must not end a request.
        if type(fault).__name__ == "PanicException":
            return None
        raise
