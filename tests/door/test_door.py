"""I9: after any interleaving of grant, cancel and timeout nothing stays and nobody is forgotten."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from lifeboat.core.gate import Gate
from lifeboat.core.rules import GateRules
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import BackendSpec, OperatorState, Reason, Refusal
from lifeboat.door import Door
from tests.core.building import FULL, OK, QUEUED, ask, gate_with, spec

Entering = asyncio.Task[Lease | Refusal]


class Scene:
    """A door on the loop's own clock, and the tasks of its clients."""

    def __init__(self, *specs: BackendSpec, rules: GateRules = QUEUED) -> None:
        loop = asyncio.get_running_loop()
        self.gate: Gate = gate_with(*(specs or (spec("a", 1),)), rules=rules, now=loop.time())
        self.door = Door(self.gate, loop.time)

    async def lease(self) -> Lease:
        found = await self.door.enter(ask())
        assert isinstance(found, Lease)
        return found

    async def waiting(self, count: int = 1) -> list[Entering]:
        tasks = [asyncio.create_task(self.door.enter(ask())) for _ in range(count)]
        await asyncio.sleep(0)
        assert self.gate.parked.count >= count
        return tasks

    def is_empty(self) -> bool:
        gate = self.gate
        held = sum(seat.in_flight for seat in gate.seats.by_name.values())
        return (gate.open, gate.parked.count, held, gate.pools["m"].depth) == (0, 0, 0, 0)


async def ended(*tasks: Entering) -> list[Lease | Refusal | BaseException]:
    return await asyncio.gather(*tasks, return_exceptions=True)


# ---- a grant, a cancel and a timeout in one tick ------------------------------------------------


@pytest.mark.parametrize("order", ["grant first", "cancel first"])
async def test_a_grant_and_a_cancel_in_one_tick_pass_the_slot_to_the_next(order: str) -> None:
    scene = Scene()
    running = await scene.lease()
    left, stays = await scene.waiting(2)
    if order == "grant first":
        scene.door.close(running, OK)
        left.cancel()
    else:
        left.cancel()
        scene.door.close(running, OK)
    first, second = await ended(left, stays)
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, Lease)
    scene.door.close(second, OK)
    assert scene.is_empty()


@pytest.mark.parametrize("order", ["timeout first", "grant first", "cancel first"])
async def test_a_timeout_in_the_tick_of_a_grant_or_a_cancel(order: str) -> None:
    scene = Scene(rules=replace(QUEUED, queue_ttl_s=1.0))
    now = scene.door.clock()
    scene.door.clock = lambda: now
    running = await scene.lease()
    (task,) = await scene.waiting()
    if order == "timeout first":
        now += 1.0
        scene.door.close(running, OK)
        (found,) = await ended(task)
        assert isinstance(found, Refusal) and found.reason is Reason.QUEUE_TIMEOUT
    elif order == "grant first":
        scene.door.close(running, OK)
        now += 1.0
        scene.door.view()
        (found,) = await ended(task)
        assert isinstance(found, Lease)
        scene.door.close(found, OK)
    else:
        task.cancel()
        now += 1.0
        scene.door.view()
        (found,) = await ended(task)
        assert isinstance(found, asyncio.CancelledError)
        scene.door.close(running, OK)
    assert scene.is_empty()
    gate = scene.gate
    assert gate.asked == gate.refused + gate.withdrawn + gate.expired + gate.finished


async def test_the_head_leaves_and_one_release_serves_the_next() -> None:
    scene = Scene()
    running = await scene.lease()
    head, second, third = await scene.waiting(3)
    head.cancel()
    await asyncio.sleep(0)
    assert scene.gate.pools["m"].depth == 2
    scene.door.close(running, OK)
    await asyncio.sleep(0)
    assert second.done() and not third.done()
    lease = second.result()
    assert isinstance(lease, Lease)
    scene.door.close(lease, OK)
    found = await third
    assert isinstance(found, Lease)
    scene.door.close(found, OK)
    assert scene.is_empty()


@pytest.mark.parametrize("when", ["before the cancels are seen", "after"])
async def test_a_storm_of_cancelled_waiters_leaves_nothing(when: str) -> None:
    scene = Scene(spec("a", 2), rules=replace(QUEUED, max_depth=10_000))
    running = [await scene.lease() for _ in range(2)]
    tasks = await scene.waiting(5_000)
    (survivor,) = await scene.waiting()
    for task in tasks:
        task.cancel()
    if when == "after":
        await asyncio.sleep(0)
        assert scene.gate.parked.count == 1
    for lease in running:
        scene.door.close(lease, OK)
    found = await survivor
    assert isinstance(found, Lease)
    scene.door.close(found, OK)
    await ended(*tasks)
    assert scene.is_empty()
    assert scene.gate.seats.by_name["a"].cancelled == 0, "none of them had reached the backend"
    assert scene.gate.pools["m"].drain.per_second(scene.door.clock()) is None
    held = sum(len(heap._entries) for heap in [scene.gate.parked._deadlines])
    assert (held, scene.gate.parked._lanes) == (0, {})
    again = await scene.lease()
    assert again.open


async def test_heaps_stay_in_proportion_to_the_living_while_waiters_come_and_go() -> None:
    scene = Scene(rules=replace(QUEUED, max_depth=10_000))
    await scene.lease()
    keep = await scene.waiting(10)
    for _ in range(30):
        tasks = await scene.waiting(100)
        for task in tasks:
            task.cancel()
        await ended(*tasks)
    (lane,) = scene.gate.parked._lanes.values()
    for heap in (*lane._by_arrival, *lane._by_size, scene.gate.parked._deadlines):
        assert len(heap._entries) <= 2 * (10 + 100) + 64
    for task in keep:
        task.cancel()
    await ended(*keep)


@pytest.mark.parametrize("seed", range(20))
async def test_any_interleaving_leaves_an_empty_gate_and_serves_whoever_stayed(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(spec("a", 1), spec("b", 2), rules=replace(QUEUED, max_depth=1000, queue_ttl_s=5))
    peak = {"a": 0, "b": 0}
    served: list[int] = []

    async def client(number: int) -> None:
        async with scene.door.slot(ask()) as lease:
            assert isinstance(lease, Lease)
            seat = lease.seat
            peak[lease.backend] = max(peak[lease.backend], seat.in_flight)
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            served.append(number)
            if chance.random() < 0.3:
                scene.door.close(lease, chance.choice([OK, OK, FULL]))

    tasks = [asyncio.create_task(client(number)) for number in range(60)]
    leaving = set(chance.sample(range(60), 30))
    for number in chance.sample(sorted(leaving), len(leaving)):
        if chance.random() < 0.5:
            await asyncio.sleep(0)
        tasks[number].cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert scene.is_empty()
    assert set(served) >= set(range(60)) - leaving
    assert peak["a"] <= 1 and peak["b"] <= 2


# ---- the slot as a block ------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["return", "error", "cancel", "closed inside"])
async def test_a_block_gives_its_slot_back_once_however_it_ends(end: str) -> None:
    scene = Scene()

    async def block() -> None:
        async with scene.door.slot(ask()) as lease:
            assert isinstance(lease, Lease)
            scene.door.note_dispatch(lease)
            if end == "error":
                raise ValueError
            if end == "cancel":
                await asyncio.sleep(10)
            if end == "closed inside":
                scene.door.close(lease, OK)

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    if end == "cancel":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert scene.is_empty()
    seat = scene.gate.seats.by_name["a"]
    assert (seat.failed, seat.cancelled) == (0, 1 if end == "cancel" else 0)
    assert scene.gate.finished == 1


async def test_a_refusal_enters_the_block_too() -> None:
    scene = Scene(rules=GateRules())
    await scene.lease()
    async with scene.door.slot(ask()) as found:
        assert isinstance(found, Refusal)
    assert scene.gate.open == 1


# ---- the timer ----------------------------------------------------------------------------------


async def test_waiters_expire_without_any_traffic() -> None:
    scene = Scene(rules=replace(QUEUED, queue_ttl_s=0.05))
    running = await scene.lease()
    (task,) = await scene.waiting()
    started = scene.door.clock()
    found = await asyncio.wait_for(task, 5)
    assert isinstance(found, Refusal) and found.reason is Reason.QUEUE_TIMEOUT
    assert scene.door.clock() - started >= 0.045
    assert scene.door._timer is None, "a timer is left with nothing to wait for"
    scene.door.close(running, OK)
    assert scene.is_empty()


async def test_the_end_of_a_saturation_pause_wakes_the_parked_by_the_timer_alone() -> None:
    # Foreign load fills the engine: nothing of ours completes, and yet the parked go on.
    scene = Scene()
    lease = await scene.lease()
    scene.door.close(lease, FULL)
    (task,) = await scene.waiting()
    found = await asyncio.wait_for(task, 5)
    assert isinstance(found, Lease)
    scene.door.close(found, OK)


async def test_an_earlier_event_moves_the_timer_and_only_one_is_ever_set() -> None:
    scene = Scene(rules=replace(QUEUED, max_depth=1000))
    lease = await scene.lease()
    tasks = await scene.waiting(50)
    late = scene.door._timer
    assert late is not None
    scene.door.reconfigure(
        lambda gate, now: gate.set_rules(replace(gate.rules, queue_ttl_s=0.05), now)
    )
    (soon,) = await scene.waiting()
    early = scene.door._timer
    assert early is not None and early is not late and late.cancelled()
    found = await asyncio.wait_for(soon, 5)
    assert isinstance(found, Refusal)
    handles = [one for one in gc.get_objects() if isinstance(one, asyncio.TimerHandle)]
    own = [one for one in handles if one._callback == scene.door._fire and not one.cancelled()]
    assert [one for one in own if one.when() > scene.door.clock()] == [scene.door._timer]
    scene.door.stop()
    assert scene.door._timer is None
    for task in tasks:
        task.cancel()
    await ended(*tasks)
    scene.door.close(lease, OK)
    assert scene.is_empty()


async def test_a_timer_that_fires_too_early_is_set_again() -> None:
    scene = Scene(rules=replace(QUEUED, queue_ttl_s=0.05))
    await scene.lease()
    (task,) = await scene.waiting()
    scene.door._fire()
    assert not task.done()
    found = await asyncio.wait_for(task, 5)
    assert isinstance(found, Refusal)


# ---- changes, and the end -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda gate, now: gate.put_backend(spec("a", 3), now),
        lambda gate, now: gate.put_backend(spec("c", 2), now),
        lambda gate, now: gate.set_operator_state("b", OperatorState.READY, now),
    ],
)
async def test_a_change_wakes_exactly_as_many_as_fit(change: Callable[[Gate, float], None]) -> None:
    scene = Scene(spec("a", 1), spec("b", 2))
    scene.door.reconfigure(lambda gate, now: gate.set_operator_state("b", OperatorState.DRAIN, now))
    await scene.lease()
    tasks = await scene.waiting(4)
    scene.door.reconfigure(change)
    await asyncio.sleep(0)
    assert [task.done() for task in tasks] == [True, True, False, False]
    for task in tasks:
        task.cancel()
    await ended(*tasks)


async def test_what_a_failed_change_did_is_still_delivered() -> None:
    scene = Scene()
    await scene.lease()
    (task,) = await scene.waiting()

    def change(gate: Gate, now: float) -> None:
        gate.put_backend(spec("a", 2), now)
        raise LookupError

    with pytest.raises(LookupError):
        scene.door.reconfigure(change)
    assert isinstance(await asyncio.wait_for(task, 5), Lease)


async def test_a_view_shows_nothing_that_is_already_over() -> None:
    scene = Scene(rules=replace(QUEUED, queue_ttl_s=1.0))
    now = scene.door.clock()
    scene.door.clock = lambda: now
    await scene.lease()
    (task,) = await scene.waiting()
    assert (scene.door.view().parked, len(scene.door.parked(10))) == (1, 1)
    now += 1.0
    assert (scene.door.view().parked, scene.door.parked(10)) == (0, [])
    assert isinstance(await task, Refusal)


async def test_drained_waits_for_the_last_lease_and_the_last_waiter() -> None:
    scene = Scene()
    await asyncio.wait_for(scene.door.drained(), 10)
    lease = await scene.lease()
    (task,) = await scene.waiting()
    drained = asyncio.create_task(scene.door.drained())
    await asyncio.sleep(0)
    scene.door.close(lease, OK)
    found = await task
    await asyncio.sleep(0)
    assert not drained.done()
    assert isinstance(found, Lease)
    scene.door.close(found, OK)
    await asyncio.wait_for(drained, 10)


async def test_drained_is_told_when_the_last_who_is_parked_is_refused() -> None:
    scene = Scene(rules=replace(QUEUED, hold_when_down=True))
    scene.door.reconfigure(lambda gate, now: gate.set_operator_state("a", OperatorState.DRAIN, now))
    (task,) = await scene.waiting()
    drained = asyncio.create_task(scene.door.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    scene.door.reconfigure(lambda gate, now: gate.drain(now, serve_parked=False))
    await asyncio.wait_for(drained, 10)
    assert isinstance(await task, Refusal)


async def test_draining_answers_the_parked_at_once() -> None:
    scene = Scene()
    lease = await scene.lease()
    (task,) = await scene.waiting()
    scene.door.reconfigure(lambda gate, now: gate.drain(now, serve_parked=False))
    found = await asyncio.wait_for(task, 10)
    assert isinstance(found, Refusal) and found.reason is Reason.SHUTTING_DOWN
    scene.door.close(lease, OK)
    await asyncio.wait_for(scene.door.drained(), 10)
