"""Virtual time against a clock that the test moves, and against the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lifeboat.sim.driver import EngineDriver, EngineGoneError, Pacing, Reply, Saturated
from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence
from tests.sim.virtual import closed_loop, engine


class Clock:
    """Seconds that move when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _admit(driver: EngineDriver, tokens: int = 200, prompt: int = 32) -> Reply:
    reply = driver.admit([Sequence(prompt, tokens)])
    assert isinstance(reply, Reply)
    return reply


def _run_alone_s(tokens: int = 200) -> float:
    """Virtual seconds that one request takes on an idle engine."""
    alone = engine()
    sequence = Sequence(32, tokens)
    alone.submit(sequence, 0.0)
    alone.advance(1e9)
    return sequence.finished_s


def _paced(
    clock: Clock,
    tested: Engine | None = None,
    *,
    scale: float = 1.0,
    pacing: Pacing = Pacing.ANCHORED,
) -> EngineDriver:
    return EngineDriver(tested or engine(), clock=clock, time_scale=scale, pacing=pacing)


@pytest.mark.parametrize("scale", [0.5, 1.0, 10.0])
async def test_no_token_is_there_before_its_time(scale: float) -> None:
    clock = Clock()
    driver = _paced(clock, scale=scale)
    reply = _admit(driver)
    whole_s = _run_alone_s() * scale
    for share in (0.1, 0.25, 0.5, 0.75, 0.999):
        clock.now_s = 1000.0 + whole_s * share
        while driver.look():
            pass
        emitted = reply.sequences[0].emitted
        assert emitted / 200 == pytest.approx(share, abs=0.02)
        assert not reply.sequences[0].ended
    clock.now_s = 1000.0 + whole_s * 1.0001
    driver.look()
    assert reply.sequences[0].ended


async def test_the_first_request_after_an_idle_spell_is_paced_like_any_other() -> None:
    clock = Clock()
    driver = _paced(clock)
    for _ in range(3):
        reply = _admit(driver)
        begun_s = clock.now_s
        clock.now_s = begun_s + _run_alone_s() * 0.99
        while driver.look():
            pass
        assert not reply.sequences[0].ended
        clock.now_s = begun_s + _run_alone_s() * 1.001
        driver.look()
        assert reply.sequences[0].ended
        clock.now_s += 3600.0


async def test_under_epoch_pacing_the_first_burst_after_a_quiet_spell_is_not_paced() -> None:
    """The cold start that the seed describes: the engine owes the time it was idle."""
    clock = Clock()
    driver = _paced(clock, pacing=Pacing.EPOCH)
    clock.now_s += 1.0
    reply = _admit(driver)
    task = asyncio.create_task(driver.run())
    await asyncio.wait_for(reply.end(), 5)
    assert clock.now_s == 1001.0
    assert reply.sequences[0].finished_s == pytest.approx(_run_alone_s())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_under_epoch_pacing_continuous_work_catches_up_and_is_paced_then() -> None:
    clock = Clock()
    driver = _paced(clock, pacing=Pacing.EPOCH)
    task = asyncio.create_task(driver.run())
    clock.now_s += _run_alone_s() * 2.5
    unpaced = 0
    for _ in range(3):
        reply = _admit(driver)
        try:
            await asyncio.wait_for(reply.end(), 2.0)
            unpaced += 1
        except TimeoutError:
            break
    assert unpaced == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_late_replays_do_not_delay_what_comes_after() -> None:
    """Deadlines are absolute: a driver that oversleeps hands out the same tokens by the end."""
    clock = Clock()
    prompt_looks, rare_looks = _paced(clock), _paced(clock)
    often, rarely = _admit(prompt_looks), _admit(rare_looks)
    for _ in range(80):
        clock.now_s += 0.001
        prompt_looks.look()
    while rare_looks.look():
        pass
    assert often.sequences[0].emitted == rarely.sequences[0].emitted > 0


async def test_admission_sees_the_present_moment_even_when_the_task_has_not_run() -> None:
    """The seats of what finished meanwhile are free: the check replays before it looks."""
    clock = Clock()
    driver = _paced(clock, engine(max_num_seqs=1, max_waiting=1))
    _admit(driver, tokens=30)
    _admit(driver, tokens=30)
    assert isinstance(driver.admit([Sequence(32, 10)]), Saturated)
    clock.now_s += _run_alone_s(30) * 1.01
    assert isinstance(driver.admit([Sequence(32, 10)]), Reply)


async def test_twelve_at_once_are_five_too_many_wherever_the_steps_fall() -> None:
    clock = Clock()
    driver = _paced(clock, engine(max_num_seqs=4, max_waiting=3))
    answers = []
    for _ in range(12):
        answers.append(driver.admit([Sequence(32, 200)]))
        clock.now_s += 0.0005
    refusals = [answer for answer in answers if isinstance(answer, Saturated)]
    assert refusals == [Saturated(3, 3)] * 5


@asynccontextmanager
async def _running(tested: Engine, **options: float) -> AsyncIterator[EngineDriver]:
    """A driver on the event loop's clock, with its task."""
    loop = asyncio.get_running_loop()
    driver = EngineDriver(tested, clock=loop.time, **options)
    task = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_task_hands_out_tokens_as_time_passes() -> None:
    loop = asyncio.get_running_loop()
    async with _running(engine(), time_scale=2.0) as driver:
        begun_s = loop.time()
        reply = _admit(driver)
        seen = [0]
        while not reply.sequences[0].ended:
            await reply.more_than(seen[-1])
            seen.append(reply.sequences[0].emitted)
        took_s = loop.time() - begun_s
    assert seen[-1] == 200
    # Coalesced to about a hundred writes a second, none of them empty.
    assert 3 <= len(seen) <= 40
    assert took_s >= _run_alone_s() * 2.0


async def test_an_idle_engine_takes_no_steps() -> None:
    async with _running(engine()) as driver:
        reply = _admit(driver, tokens=5)
        await reply.end()
        await asyncio.sleep(0)
        steps = driver.engine.steps
        await asyncio.sleep(0.05)
        assert driver.engine.steps == steps
        assert driver.engine.idle


async def test_a_reader_that_never_reads_delays_nobody() -> None:
    async with _running(engine()) as driver:
        lazy, eager = _admit(driver), _admit(driver)
        await asyncio.wait_for(eager.end(), 5)
        took_s = eager.sequences[0].finished_s - eager.sequences[0].arrived_s
        assert took_s == pytest.approx(
            closed_loop(engine(), users=2, prompt_tokens=32).latency_s, 0.02
        )
        assert lazy.sequences[0].ended


async def test_a_reader_that_leaves_frees_its_seat_for_the_next_in_line() -> None:
    async with _running(engine(max_num_seqs=1), time_scale=5.0) as driver:
        leaving = _admit(driver, tokens=100_000)
        waiting = _admit(driver, tokens=2)
        await leaving.more_than(0)
        assert driver.engine.depth == 1
        driver.withdraw(leaving)
        driver.withdraw(leaving)
        await asyncio.wait_for(waiting.end(), 5)
        assert driver.engine.in_flight == 0
        assert driver.engine.scheduler.kv.free == driver.engine.scheduler.kv.total


async def test_readers_learn_that_the_engine_is_gone() -> None:
    async with _running(engine(max_num_seqs=1), time_scale=100.0) as driver:
        running, queued = _admit(driver), _admit(driver)
        readers = [
            asyncio.create_task(running.more_than(5)),
            asyncio.create_task(queued.end()),
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(result) for result in results] == [EngineGoneError] * 2
    assert not driver.alive
    with pytest.raises(EngineGoneError):
        driver.admit([Sequence(1, 1)])
    with pytest.raises(EngineGoneError):
        await running.end()


async def test_an_engine_that_fails_is_gone_and_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = engine()
    loop = asyncio.get_running_loop()
    driver = EngineDriver(tested, clock=loop.time)
    reply = _admit(driver)

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(tested, "advance", fail)
    await driver.run()
    assert "out of order" in caplog.text
    with pytest.raises(EngineGoneError):
        await reply.end()


async def test_a_request_of_several_sequences_is_admitted_whole_or_not_at_all() -> None:
    clock = Clock()
    driver = _paced(clock, engine(max_num_seqs=1, max_waiting=2))
    assert isinstance(driver.admit([Sequence(8, 5) for _ in range(5)]), Reply)
    assert driver.engine.in_flight == 5
    assert isinstance(driver.admit([Sequence(8, 5)]), Saturated)
    assert driver.engine.in_flight == 5


async def test_preempted_readers_get_the_tokens_that_were_emitted_before() -> None:
    clock = Clock()
    driver = _paced(clock, engine(kv_blocks=3))
    first, second = _admit(driver, tokens=68, prompt=60), _admit(driver, tokens=68, prompt=60)
    seen = asyncio.create_task(second.more_than(0))
    await asyncio.sleep(0)
    clock.now_s += 0.02
    driver.look()
    assert driver.engine.scheduler.preemptions
    await asyncio.wait_for(seen, 10)
    assert second.sequences[0].emitted > 0
    assert not first.sequences[0].ended
