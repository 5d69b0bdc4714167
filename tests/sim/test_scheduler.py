"""Laws of the scheduler, over random workloads and one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lifeboat.sim.kv import BLOCK_TOKENS, BlockPool, blocks_for
from lifeboat.sim.scheduler import Phase, Plan, Scheduler, Sequence

FAR_S = 1.0


def _scheduler(seats: int = 4, budget: int = 8192, blocks: int = 1000) -> Scheduler:
    return Scheduler(seats, budget, BlockPool(blocks))


def _add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.add(sequence)


def _step(scheduler: Scheduler) -> tuple[Plan, list[Sequence]]:
    plan = scheduler.plan()
    return plan, scheduler.commit(plan, FAR_S)


def test_the_pass_that_completes_the_prompt_yields_the_first_token() -> None:
    scheduler, sequence = _scheduler(), Sequence(100, 3)
    _add(scheduler, sequence)
    plan, _ = _step(scheduler)
    assert plan == [(sequence, 100)]
    assert sequence.emitted == 1


def test_an_answer_of_t_tokens_takes_t_steps() -> None:
    scheduler, sequence = _scheduler(), Sequence(100, 5)
    _add(scheduler, sequence)
    steps = 0
    while not sequence.ended:
        _step(scheduler)
        steps += 1
    assert steps == 5
    assert scheduler.plan() == []


def test_an_embedding_ends_with_its_prefill_and_has_no_token() -> None:
    scheduler, sequence = _scheduler(), Sequence(100, 0)
    _add(scheduler, sequence)
    _, finished = _step(scheduler)
    assert finished == [sequence]
    assert sequence.emitted == 0


def test_a_long_prompt_is_computed_in_chunks_beside_running_ones() -> None:
    scheduler = _scheduler(budget=100)
    first, long = Sequence(10, 50), Sequence(250, 5)
    _add(scheduler, first)
    _step(scheduler)
    _add(scheduler, long)
    chunks = [dict(_step(scheduler)[0]) for _ in range(3)]
    assert [chunk[first] for chunk in chunks] == [1, 1, 1]
    assert [chunk[long] for chunk in chunks] == [99, 99, 52]
    assert long.emitted == 1


def test_the_line_is_served_first_come_first_served_up_to_the_seats() -> None:
    scheduler = _scheduler(seats=2)
    sequences = [Sequence(10, 2) for _ in range(5)]
    _add(scheduler, *sequences)
    order: list[Sequence] = []
    for _ in range(6):
        plan, _ = _step(scheduler)
        order += [s for s, _ in plan if s not in order]
        assert len(plan) <= 2
    assert order == sequences


def test_lowering_the_seats_drains_and_evicts_nobody() -> None:
    scheduler = _scheduler(seats=4)
    running = [Sequence(10, tokens) for tokens in (2, 3, 4, 5)]
    queued = [Sequence(10, 5), Sequence(10, 5)]
    _add(scheduler, *running, *queued)
    _step(scheduler)
    scheduler.max_num_seqs = 1
    batches = [len(_step(scheduler)[0]) for _ in range(5)]
    assert batches == [4, 3, 2, 1, 1]
    assert [s.phase for s in running] == [Phase.FINISHED] * 4
    assert scheduler.running == [queued[0]]
    assert list(scheduler.waiting()) == [queued[1]]


def test_raising_the_seats_admits_at_the_next_step() -> None:
    scheduler = _scheduler(seats=1)
    _add(scheduler, *[Sequence(10, 5) for _ in range(4)])
    _step(scheduler)
    scheduler.max_num_seqs = 3
    assert len(_step(scheduler)[0]) == 3


def test_the_last_admitted_is_preempted_keeps_its_tokens_and_goes_first() -> None:
    """Two of 64 + 64 tokens and a cache of three blocks: the second one has to give way."""
    scheduler = _scheduler(blocks=3)
    first, second, third = Sequence(60, 68), Sequence(60, 68), Sequence(200, 1)
    _add(scheduler, first, second, third)
    while not second.preemptions:
        _step(scheduler)
    assert second.emitted >= 5
    kept = second.emitted
    assert next(scheduler.waiting()) is second
    assert second.blocks == 0
    assert second.resident == 0
    while not first.ended:
        _step(scheduler)
    plan, _ = _step(scheduler)
    assert plan[0] == (second, 60 + kept)
    assert second.emitted == kept + 1


def test_nobody_is_admitted_in_the_step_of_a_preemption() -> None:
    scheduler = _scheduler(blocks=3)
    first, second = Sequence(60, 68), Sequence(60, 68)
    _add(scheduler, first, second)
    while not second.preemptions:
        plan, _ = _step(scheduler)
    assert [s for s, _ in plan] == [first]
    assert scheduler.short_of_kv
    assert scheduler.free_seats == 0


def test_a_client_that_leaves_frees_its_seat_and_its_cache_at_the_next_step() -> None:
    scheduler = _scheduler(seats=1, blocks=10)
    leaving, waiting = Sequence(100, 50), Sequence(100, 50)
    _add(scheduler, leaving, waiting)
    _step(scheduler)
    scheduler.withdraw(leaving)
    assert scheduler.running == [leaving]
    plan, _ = _step(scheduler)
    assert [s for s, _ in plan] == [waiting]
    assert scheduler.kv.free == 10 - blocks_for(100)


def test_a_client_that_leaves_the_line_is_gone_at_once() -> None:
    scheduler = _scheduler(seats=1)
    running, leaving = Sequence(10, 50), Sequence(10, 50)
    _add(scheduler, running, leaving)
    _step(scheduler)
    scheduler.withdraw(leaving)
    assert scheduler.queued == 0


WORKLOADS = st.lists(
    st.tuples(
        st.integers(1, 400),  # prompt tokens
        st.integers(0, 150),  # output tokens
        st.integers(0, 40),  # step at which it arrives
        st.none() | st.integers(0, 60),  # step at which its client leaves
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(
    workload=WORKLOADS,
    seats=st.integers(1, 6),
    budget=st.integers(1, 300),
    blocks=st.integers(9, 30),
    retune=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 6)), max_size=3),
)
def test_laws_hold_for_any_workload(
    workload: list[tuple[int, int, int, int | None]],
    seats: int,
    budget: int,
    blocks: int,
    retune: list[tuple[int, int]],
) -> None:
    scheduler = _scheduler(seats, budget, blocks)
    sequences = [Sequence(prompt, output) for prompt, output, _, _ in workload]
    caps = dict(retune)
    step = 0
    emitted = [0] * len(sequences)
    while step < 61 or scheduler.running or scheduler.queued:
        assert step < 100_000, "the engine makes no progress"
        for sequence, (_, _, arrives, leaves) in zip(sequences, workload, strict=True):
            if arrives == step:
                scheduler.add(sequence)
            if leaves == step and leaves >= arrives and not sequence.ended:
                scheduler.withdraw(sequence)
        scheduler.max_num_seqs = caps.get(step, scheduler.max_num_seqs)
        before = len([s for s in scheduler.running if s.phase is Phase.RUNNING])
        plan = scheduler.plan()

        assert sum(new for _, new in plan) <= budget
        assert all(new >= 1 for _, new in plan)
        assert len(scheduler.running) <= max(scheduler.max_num_seqs, before)
        held = sum(s.blocks for s in sequences)
        assert held + scheduler.kv.free == blocks
        assert 0 <= scheduler.kv.free
        assert all(s.blocks == 0 for s in sequences if s.phase is not Phase.RUNNING)
        for sequence, new in plan:
            assert sequence.blocks * BLOCK_TOKENS >= sequence.resident + new

        scheduler.commit(plan, float(step))
        assert all(s.emitted >= was for s, was in zip(sequences, emitted, strict=True))
        emitted = [s.emitted for s in sequences]
        step += 1
    for sequence in sequences:
        assert sequence.ended
        if sequence.phase is Phase.FINISHED:
            assert sequence.emitted == sequence.max_tokens
    assert scheduler.kv.free == blocks
