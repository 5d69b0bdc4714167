"""The count by tokenizer: exact, bounded, off the loop, and given up with its caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from threading import Event
from typing import Any

import pytest

from lifeboat.core.estimate import bounds, quick
from lifeboat.core.protocol import Protocol
from lifeboat.core.shape import Shape, read_shape
from lifeboat.core.vocabulary import EstimateMethod
from lifeboat.counting import TokenCounter, load_encoding
from lifeboat.counting import counter as counter_module

WORDS = "Some words that any prompt may have in it. "
ENCODING = load_encoding("cl100k_base")


def chat(text: str) -> Shape:
    return read_shape({"messages": [{"role": "user", "content": text}]}, Protocol.CHAT)


@pytest.fixture
async def counter(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TokenCounter]:
    monkeypatch.setattr(counter_module, "load_encoding", lambda _: ENCODING)
    made = TokenCounter("cl100k_base", workers=1, backlog=1)
    made.load()
    yield made
    made.close()


async def test_before_the_vocabulary_is_there_the_quick_figure_stands() -> None:
    made = TokenCounter("cl100k_base")
    assert not made.is_loaded
    assert await made.count(chat("hello"), 100) is None
    made.close()


@pytest.mark.parametrize(
    "repeats", [1, 40, 4_000], ids=["in place", "in place, longer", "off the loop"]
)
async def test_the_count_is_the_tokenizers_and_lies_within_the_bounds(
    counter: TokenCounter, repeats: int
) -> None:
    shape = chat(WORDS * repeats)
    estimate = await counter.count(shape, 10**9)
    assert estimate is not None
    true = len(ENCODING.encode_ordinary(WORDS * repeats)) + shape.sequences[0].fixed
    assert estimate.tokens == pytest.approx(true, rel=0.001)
    assert estimate.total_tokens == estimate.tokens
    assert (estimate.method, estimate.error) == (EstimateMethod.TOKENIZER, 0.0)
    around = bounds(shape)
    assert around.low <= estimate.tokens <= around.high


@pytest.mark.parametrize("char", ["a", " ", "^", "\n"])
async def test_runs_that_break_tokenizers_are_counted_and_stopped_at_the_cap(
    counter: TokenCounter, char: str
) -> None:
    shape = chat(char * 1_000_000)
    began = time.process_time()
    estimate = await counter.count(shape, 5_000)
    # Not stopped, or not in pieces, a million of them take minutes.
    assert time.process_time() - began < 5.0
    assert estimate is not None
    assert estimate.tokens > 5_000


async def test_counting_costs_what_the_cap_costs_not_what_the_body_costs(
    counter: TokenCounter,
) -> None:
    shape = chat(WORDS * 200_000)
    began = time.process_time()
    estimate = await counter.count(shape, 8_192)
    spent = time.process_time() - began
    assert estimate is not None
    assert estimate.tokens > 8_192
    began = time.process_time()
    await counter.count(shape, 10**9)
    assert spent < (time.process_time() - began) / 10


async def test_the_longest_of_a_batch_is_found_whatever_the_quick_figure_says(
    counter: TokenCounter,
) -> None:
    # By the quick figure the second is longer, by the tokenizer the first.
    inputs = ["qz" * 3_000, "antidisestablishmentarianism " * 400, WORDS]
    shape = read_shape({"input": inputs}, Protocol.EMBEDDINGS)
    estimate = await counter.count(shape, 10**9)
    assert estimate is not None
    assert estimate.tokens == max(len(ENCODING.encode_ordinary(text)) for text in inputs)


async def test_special_tokens_and_lone_surrogates_are_counted_as_text(
    counter: TokenCounter,
) -> None:
    estimate = await counter.count(chat("<|endoftext|> \ud83d"), 100)
    assert estimate is not None
    assert estimate.tokens > 10


class _Stuck:
    """An encoding whose first call waits until it is let go."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def encode_ordinary(self, _: str) -> list[int]:
        self.act()
        return [1]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - a thread sets it, not the loop
            await asyncio.sleep(0.001)


async def test_a_full_backlog_leaves_the_quick_figure(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = Event()
    stuck: Any = _Stuck(lambda: release.wait(5) and None)
    monkeypatch.setattr(counter, "_encoding", stuck)
    shape = chat(WORDS * 4_000)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(counter.count(shape, 10**9))
        second = group.create_task(counter.count(shape, 10**9))
        await _until(lambda: counter.busy == 2)
        assert await counter.count(shape, 10**9) is None
        release.set()
    assert first.result() is not None
    assert second.result() is not None
    assert counter.busy == 0


async def test_a_cancelled_caller_takes_its_count_along(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release, calls = Event(), Event(), []

    def act() -> None:
        calls.append(1)
        entered.set()
        release.wait(5)

    stuck: Any = _Stuck(act)
    monkeypatch.setattr(counter, "_encoding", stuck)
    task = asyncio.get_running_loop().create_task(counter.count(chat(WORDS * 40_000), 10**9))
    await _until(entered.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    monkeypatch.setattr(counter, "_encoding", ENCODING)
    assert await counter.count(chat(WORDS * 4_000), 10**9) is not None
    assert len(calls) == 1, "the cancelled count went on to its next slice"


async def test_a_panic_in_the_tokenizer_leaves_the_quick_figure(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def act() -> None:
        raise PanicException("stack overflow")

    stuck: Any = _Stuck(act)
    monkeypatch.setattr(counter, "_encoding", stuck)
    assert await counter.count(chat("short"), 100) is None
    assert await counter.count(chat(WORDS * 4_000), 10**9) is None


async def test_a_closed_counter_counts_nothing(counter: TokenCounter) -> None:
    counter.close()
    assert await counter.count(chat("hello"), 100) is None


async def test_closing_under_a_count_answers_none(
    counter: TokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = Event(), Event()

    def act() -> None:
        entered.set()
        release.wait(5)

    stuck: Any = _Stuck(act)
    monkeypatch.setattr(counter, "_encoding", stuck)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(counter.count(chat(WORDS * 40_000), 10**9))
        await _until(entered.is_set)
        waiting = group.create_task(counter.count(chat(WORDS * 4_000), 10**9))
        await _until(lambda: counter.busy == 2)
        counter.close()
        release.set()
    assert running.result() is None
    assert waiting.result() is None


async def test_the_loop_lives_on_while_a_long_text_is_counted(counter: TokenCounter) -> None:
    shape = chat(WORDS * 100_000)
    quick(shape)
    task = asyncio.get_running_loop().create_task(counter.count(shape, 10**9))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert task.result() is not None
    assert turns > 20
