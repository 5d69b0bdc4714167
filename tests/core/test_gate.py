"""Order, late binding and re-admission, one at a time; the laws are in test_gate_machine.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.gate import Gate
from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.modes import Mode
from lifeboat.core.queue import Place, Ticket
from lifeboat.core.rules import GateRules, PoolRules
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import (
    UNKNOWN_POOL,
    Capability,
    Health,
    Kind,
    OperatorState,
    Outcome,
    Priority,
    Reason,
    Refusal,
    Verdict,
)
from tests.core.building import (
    FULL,
    GONE,
    OK,
    QUEUED,
    REFUSED,
    RESET,
    ask,
    gate_with,
    granted,
    grants,
    leased,
    parked,
    refused,
    spec,
    turned_away,
)

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
QUEUE_ALL = GateRules(mode=Mode.QUEUE_ALL)


def serve_all(gate: Gate, running: Lease, now: float) -> list[Ticket]:
    """End the running request and each one granted after it, and return who ran, in order."""
    ran: list[Ticket] = []
    lease: Lease | None = running
    while lease is not None:
        gate.release(lease, OK, now)
        found = grants(gate.take_effects())
        assert len(found) <= 1
        lease = found[0][1] if found else None
        ran += [ticket for ticket, _ in found]
    return ran


# ---- caps and refusals --------------------------------------------------------------------------


def test_two_backends_of_two_take_four_and_refuse_the_rest_without_a_reason() -> None:
    gate = gate_with(spec("a", 2), spec("b", 2), rules=GateRules())
    found = [gate.admit(ask(), 0.0) for _ in range(12)]
    assert [type(one) for one in found] == [Lease] * 4 + [Refusal] * 8
    assert {one.reason for one in found[4:] if isinstance(one, Refusal)} == {Reason.GATE}
    assert [seat.in_flight for seat in gate.seats.by_name.values()] == [2, 2]


def test_a_disabled_gate_lets_eighty_through() -> None:
    gate = gate_with(spec("a", 0), rules=GateRules())
    assert all(isinstance(gate.admit(ask(), 0.0), Lease) for _ in range(80))


def test_the_pool_parks_four_times_its_concurrency_and_no_more() -> None:
    gate = gate_with(spec("a", 2))
    for _ in range(2):
        leased(gate, 0.0)
    for _ in range(8):
        parked(gate, 0.0)
    refusal = refused(gate, 0.0)
    assert (refusal.reason, refusal.queue_depth, refusal.queue_limit) == (Reason.QUEUE_FULL, 8, 8)


def test_a_hot_model_does_not_close_another_queue_on_the_same_backend() -> None:
    gate = gate_with(spec("a", 1, models=("hot", "cold")))
    leased(gate, 0.0, ask("hot"))
    for _ in range(4):
        parked(gate, 0.0, ask("hot"))
    assert refused(gate, 0.0, ask("hot")).reason is Reason.QUEUE_FULL
    parked(gate, 0.0, ask("cold"))


def test_nothing_parks_while_a_backend_without_a_gate_can_serve() -> None:
    gate = gate_with(spec("a", 1), spec("b", 0))
    assert all(isinstance(gate.admit(ask(), 0.0), Lease) for _ in range(50))
    assert gate.seats.by_name["a"].in_flight <= 1


def test_lowering_a_limit_drains_and_evicts_nobody() -> None:
    gate = gate_with(spec("a", 3))
    leases = [leased(gate, 0.0) for _ in range(3)]
    waiting = parked(gate, 0.0)
    gate.put_backend(spec("a", 1), 1.0)
    assert all(lease.open for lease in leases)
    for lease in leases[:2]:
        gate.release(lease, OK, 1.0)
        assert gate.take_effects() == []
    gate.release(leases[2], OK, 1.0)
    assert granted(gate) == [waiting]


def test_closing_twice_gives_the_slot_back_once() -> None:
    gate = gate_with(spec("a", 2))
    first, second = leased(gate, 0.0), leased(gate, 0.0)
    for _ in range(3):
        gate.release(first, OK, 1.0)
    assert (gate.seats.by_name["a"].in_flight, gate.open, gate.finished) == (1, 1, 1)
    gate.release(second, OK, 1.0)
    assert gate.seats.by_name["a"].in_flight == 0


# ---- order --------------------------------------------------------------------------------------

ARRIVALS = [
    # name, class, tokens, arrived
    ("old low", LOW, 900, 0.0),
    ("old high", HIGH, 800, 1.0),
    ("big normal", NORMAL, 500, 6.0),
    ("small normal", NORMAL, 50, 7.0),
    ("fresh low", LOW, 1, 8.0),
    ("fresh high", HIGH, 700, 9.0),
    ("small too", NORMAL, 50, 9.5),
]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (
            Mode.DEFAULT,
            ["old low", "old high", "fresh high", "small normal", "small too", "big normal",
             "fresh low"],
        ),
        (
            Mode.SUPERFAST,
            ["old low", "old high", "fresh high", "small normal", "small too", "big normal",
             "fresh low"],
        ),
        (
            Mode.QUEUE_ALL,
            ["old low", "old high", "fresh high", "big normal", "small normal", "small too",
             "fresh low"],
        ),
    ],
)  # fmt: skip
def test_boosted_go_first_by_arrival_then_classes_then_by_the_mode(
    mode: Mode, expected: list[str]
) -> None:
    gate = gate_with(spec("a", 2), rules=replace(QUEUED, mode=mode))
    # Two slots, so that the ceiling takes all seven under superfast too; one stays taken.
    running, _ = leased(gate, 0.0), leased(gate, 0.0)
    names = {
        parked(gate, at, ask(tokens=tokens, priority=priority)): name
        for name, priority, tokens, at in ARRIVALS
    }
    # At 12 s the first two have been parked for the boost (10 s) or longer.
    assert [names[ticket] for ticket in serve_all(gate, running, 12.0)] == expected


@pytest.mark.parametrize(("at", "first"), [(9.999, "fresh"), (10.0, "old")])
def test_the_boost_begins_at_exactly_its_age(at: float, first: str) -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    old = parked(gate, 0.0, ask(tokens=1000, priority=LOW))
    fresh = parked(gate, 5.0, ask(tokens=1, priority=HIGH))
    gate.release(running, OK, at)
    assert granted(gate) == [{"old": old, "fresh": fresh}[first]]


def test_the_order_follows_the_mode_in_force() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    big = parked(gate, 1.0, ask(tokens=100))
    middle = parked(gate, 2.0, ask(tokens=50))
    small = parked(gate, 3.0, ask(tokens=1))
    gate.set_rules(QUEUE_ALL, 4.0)
    gate.release(running, OK, 4.0)
    ((ticket, lease),) = grants(gate.take_effects())
    assert ticket is big
    gate.set_rules(QUEUED, 4.0)
    assert serve_all(gate, lease, 4.0) == [small, middle]


def test_one_order_over_all_pools_that_share_a_backend() -> None:
    gate = gate_with(spec("a", 1, models=("m", "n")), spec("b", 1, models=("n",)))
    running = leased(gate, 0.0, ask("m"))
    leased(gate, 0.0, ask("n"))
    first = parked(gate, 1.0, ask("n", tokens=10))
    second = parked(gate, 2.0, ask("m", tokens=20))
    third = parked(gate, 3.0, ask("n", tokens=30))
    assert serve_all(gate, running, 4.0) == [first, second, third]


@given(
    st.lists(
        st.tuples(st.sampled_from(Priority), st.integers(1, 9), st.floats(0.0, 3.0)),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(Mode),
)
def test_the_queue_is_the_sorted_list(
    arrivals: list[tuple[Priority, int, float]], mode: Mode
) -> None:
    gate = gate_with(spec("a", 2), rules=GateRules(mode=mode, queue_enabled=True, max_depth=50))
    running, _ = leased(gate, 0.0), leased(gate, 0.0)
    now = 0.0
    tickets: list[Ticket] = []
    for priority, tokens, step_s in arrivals:
        now += step_s
        tickets.append(parked(gate, now, ask(tokens=tokens, priority=priority)))
    # Never back: some may have expired by then, and are left out.
    now = max(now, min(now + 5.0, 29.0))
    tickets = [ticket for ticket in tickets if ticket.deadline > now]

    def key(ticket: Ticket) -> tuple[float, ...]:
        place = ticket.place
        if now - place.arrived_at >= 10.0:
            return (0, place.arrived_at, place.seq)
        size = 0 if mode is Mode.QUEUE_ALL else ticket.ask.estimate.total_tokens
        return (1, ticket.ask.priority.rank, size, place.arrived_at, place.seq)

    gate.advance(now)
    gate.take_effects()
    assert serve_all(gate, running, now) == sorted(tickets, key=key)


def test_nothing_starves_behind_a_steady_stream_of_smaller_and_higher_requests() -> None:
    gate = gate_with(spec("a", 1), rules=replace(QUEUED, max_depth=1000))
    running = leased(gate, 0.0)
    victim = parked(gate, 0.0, ask(tokens=10_000, priority=LOW))
    now = 0.0
    while victim.state.name == "PARKED":
        now += 0.5
        assert now < 12.0, "starved"
        parked(gate, now, ask(tokens=1, priority=HIGH))
        parked(gate, now, ask(tokens=1, priority=HIGH))
        gate.release(running, OK, now)
        ((_, running),) = grants(gate.take_effects())
    assert now == 10.0


def test_a_batch_is_ordered_by_its_sum() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    batch = replace(ask(tokens=5), estimate=replace(ask(tokens=5).estimate, total_tokens=50))
    big, small = parked(gate, 0.0, batch), parked(gate, 0.0, ask(tokens=20))
    assert serve_all(gate, running, 1.0) == [small, big]


# ---- late binding: what adds room wakes exactly as many as fit ----------------------------------


def test_raising_a_limit_from_one_to_three_wakes_exactly_two() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    tickets = [parked(gate, 0.0) for _ in range(4)]
    gate.put_backend(spec("a", 3), 1.0)
    assert granted(gate) == tickets[:2]
    assert isinstance(gate.admit(ask(), 1.0), Ticket), "a fresh arrival overtook the parked"


def test_a_new_backend_serves_the_parked_at_once() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    tickets = [parked(gate, 0.0) for _ in range(4)]
    gate.put_backend(spec("b", 2), 1.0)
    found = grants(gate.take_effects())
    assert [(ticket, lease.backend) for ticket, lease in found] == [
        (tickets[0], "b"),
        (tickets[1], "b"),
    ]


def test_a_backend_that_lists_its_models_serves_the_held_at_once() -> None:
    gate = gate_with(spec("a", 1, models=None), rules=QUEUE_ALL)
    known, other = parked(gate, 0.0, ask("m")), parked(gate, 0.0, ask("x"))
    assert known.pool_name == other.pool_name == UNKNOWN_POOL
    gate.put_backend(spec("a", 1, models=("m",)), 1.0)
    effects = gate.take_effects()
    assert [ticket for ticket, _ in grants(effects)] == [known]
    assert turned_away(effects) == [(other, Reason.NO_BACKENDS)]
    assert known.pool_name == "m"


@pytest.mark.parametrize("how", ["undrain", "recovery", "mode", "pause", "slots", "models", "cap"])
def test_whatever_opens_a_backend_wakes_as_many_as_fit(how: str) -> None:
    rules = QUEUED
    other = spec("b", 2)
    if how == "mode":
        rules, other = replace(QUEUED, mode=Mode.SUPERFAST, superfast_cap=1), spec("b", 3)
    if how == "slots":
        other = spec("b", None, kind=Kind.GGUF)
        rules = replace(QUEUED, gguf_default_max_concurrency=1)
    if how == "models":
        other = spec("b", 2, models=("n",))
    if how == "cap":
        other = spec("b", 2, cap=5)
    gate = gate_with(spec("a", 1), rules=rules)
    leased(gate, 0.0)
    gate.put_backend(other, 0.0)
    seat = gate.seats.by_name["b"]
    match how:
        case "undrain":
            gate.set_operator_state("b", OperatorState.DRAIN, 0.0)
        case "recovery":
            gate.observe_probe("b", Probe(ProbeResult.REFUSED), 0.0)
        case "mode" | "slots":
            leased(gate, 0.0)
        case "pause":
            gate.release(leased(gate, 0.0), Outcome(Verdict.THROTTLED, 429, 2.0), 0.0)
        case _:
            pass
    assert seat.limit == 0 or not seat.has_room or how in ("models", "cap")
    tickets = [parked(gate, 1.0) for _ in range(4)]
    assert gate.take_effects() == []
    match how:
        case "undrain":
            gate.set_operator_state("b", OperatorState.READY, 2.0)
        case "recovery":
            gate.observe_probe("b", Probe(ProbeResult.OK), 2.0)
        case "mode":
            gate.set_rules(QUEUED, 2.0)
        case "pause":
            assert gate.next_event_at(1.0) == 2.0
            gate.advance(2.0)
        case "slots":
            gate.set_slots("b", 3, 2.0)
        case _:
            gate.put_backend(spec("b", 2), 2.0)
    assert granted(gate) == tickets[:2]


# ---- time to live -------------------------------------------------------------------------------


def test_expiry_is_exact_and_takes_no_slot() -> None:
    gate = gate_with(spec("a", 1), rules=replace(QUEUED, queue_ttl_s=1.5))
    running = leased(gate, 0.0)
    ticket = parked(gate, 1.0)
    assert gate.next_event_at(1.0) == 2.5
    gate.advance(2.4999)
    assert gate.take_effects() == []
    gate.release(running, OK, 2.5)
    assert turned_away(gate.take_effects()) == [(ticket, Reason.QUEUE_TIMEOUT)]
    assert gate.seats.by_name["a"].in_flight == 0
    assert gate.next_event_at(2.5) is None


def test_the_parked_keep_their_deadline_and_place_when_the_settings_change() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    old = parked(gate, 0.0)
    gate.set_rules(replace(QUEUED, queue_ttl_s=5.0, max_depth=1), 1.0)
    gate.put_backend(spec("a", 1), 1.0)
    assert old.deadline == 30.0
    assert refused(gate, 1.0).reason is Reason.QUEUE_FULL
    gate.withdraw(old, 1.0)
    assert parked(gate, 1.0).deadline == 6.0


def test_the_ttl_counts_parked_time_only_and_a_reparked_request_keeps_what_is_left() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.release(running, OK, 4.0)
    ((_, lease),) = grants(gate.take_effects())
    gate.release(lease, FULL, 9.0)
    again = parked(gate, 9.0, place=lease.place)
    assert again.place is ticket.place
    assert again.deadline == 9.0 + 26.0
    assert lease.waited_s == 4.0


def test_a_reparked_request_finds_its_old_place() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    first = parked(gate, 1.0)
    second = parked(gate, 2.0)
    gate.release(running, OK, 3.0)
    ((ticket, lease),) = grants(gate.take_effects())
    assert ticket is first
    # The engine had no room after all: the backend closes down, and the request waits again.
    gate.release(lease, FULL, 4.0)
    again = parked(gate, 4.0, place=lease.place)
    gate.advance(4.25)
    ((ticket, lease),) = grants(gate.take_effects())
    assert ticket is again
    assert serve_all(gate, lease, 5.0) == [second]


def test_a_request_may_be_parked_again_and_again_in_the_same_lane() -> None:
    # Its heap entries have equal keys each time; they must not be compared beyond that.
    gate = gate_with(spec("a", 1))
    lease = leased(gate, 0.0)
    for _ in range(200):
        waiting = parked(gate, 0.0, place=lease.place)
        other = parked(gate, 0.0)
        gate.release(lease, OK, 0.0)
        ((ticket, lease),) = grants(gate.take_effects())
        assert ticket is waiting
        gate.withdraw(other, 0.0)


def test_no_ceiling_refuses_a_request_that_is_parked_again() -> None:
    gate = gate_with(spec("a", 1), rules=replace(QUEUED, max_depth=1))
    lease = leased(gate, 0.0)
    parked(gate, 0.0)
    gate.release(lease, FULL, 0.0)
    assert isinstance(gate.admit(ask(), 0.0, lease.place), Ticket)


def test_with_no_ttl_left_it_takes_free_room_or_hears_that_its_time_is_up() -> None:
    gate = gate_with(spec("a", 1))
    spent = Place(0.0, 1)
    spent.ttl_s, spent.parked_s = 30.0, 30.0
    free = leased(gate, 50.0, place=spent)
    assert refused(gate, 50.0, place=spent).reason is Reason.QUEUE_TIMEOUT
    assert free.open


def test_a_withdrawn_request_is_gone_at_once() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.withdraw(ticket, 1.0)
    assert (gate.pools["m"].depth, gate.parked.count, gate.withdrawn) == (0, 0, 1)
    gate.release(running, OK, 1.0)
    assert gate.take_effects() == []
    assert gate.next_event_at(1.0) is None


# ---- failing over -------------------------------------------------------------------------------


def test_a_failed_attempt_goes_to_the_next_candidate() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1))
    lease = leased(gate, 0.0)
    gate.release(lease, RESET, 0.0)
    gate.exclude(lease.place, lease)
    assert leased(gate, 0.0, place=lease.place).backend != lease.backend


@pytest.mark.parametrize("known_good", [True, False])
def test_an_exclusion_lapses_when_the_backend_shows_itself_good(known_good: bool) -> None:
    gate = gate_with(spec("a", 2), spec("b", 1))
    if known_good:
        gate.observe_probe("a", Probe(ProbeResult.OK), 0.0)
    blocker = leased(gate, 0.0, ask(backend="b"))
    failing, other = leased(gate, 0.0), leased(gate, 0.0)
    assert failing.backend == other.backend == "a"
    gate.release(failing, RESET, 1.0)
    gate.exclude(failing.place, failing)
    waiting = parked(gate, 1.0, place=failing.place)
    gate.release(other, OK, 2.0)
    assert granted(gate) == [waiting]
    assert blocker.open


def test_whoever_is_readmitted_by_a_recovery_takes_part_in_the_same_handing_on() -> None:
    # The backend that recovers has a pause that ends in the same step: its slot goes to the older
    # request that had excluded it, not to the fresher one that had not.
    gate = gate_with(spec("a", 4), spec("b", 1))
    leased(gate, 0.0, ask(backend="b"))
    leases = [leased(gate, 0.0, ask(backend="a")) for _ in range(4)]
    gate.release(leases[0], RESET, 0.0)
    gate.exclude(leases[0].place, leases[0])
    gate.release(leases[1], FULL, 0.0)
    older = parked(gate, 0.0, ask(tokens=1), place=leases[0].place)
    fresher = parked(gate, 0.1, ask(tokens=1))
    assert gate.seats.by_name["a"].limit == 2
    gate.release(leases[2], OK, 0.25)
    assert granted(gate) == [older, fresher]


def test_one_step_hands_on_in_one_order_whatever_opened() -> None:
    # A step opens `b`, and the pause of `a` is over in the same step. The older request fits only
    # `b`; the younger one fits both and would prefer `b`, the emptier: it must not take that slot.
    gate = gate_with(spec("a", 2), spec("b", 1, models=("m", "n")))
    gate.set_rules(QUEUE_ALL, 0.0)
    gate.release(leased(gate, 0.0, ask(backend="a")), FULL, 0.0)
    gate.set_operator_state("b", OperatorState.DRAIN, 0.0)
    older = parked(gate, 0.0, ask("n"))
    younger = parked(gate, 0.1, ask("m"))
    gate.set_operator_state("b", OperatorState.READY, 0.3)
    found = {ticket: lease.backend for ticket, lease in grants(gate.take_effects())}
    assert found == {older: "b", younger: "a"}


def test_a_backend_that_comes_back_under_its_name_starts_trusted_with_its_counters() -> None:
    gate = gate_with(spec("a", 2), spec("b", 1))
    leased(gate, 0.0, ask(backend="b"))
    lease = leased(gate, 0.0)
    assert lease.backend == "a"
    gate.note_dispatch(lease)
    gate.release(lease, REFUSED, 0.0)
    gate.exclude(lease.place, lease)
    waiting = parked(gate, 0.0, place=lease.place)
    gate.remove_backend("a", 1.0)
    assert "a" not in gate.seats.by_name
    gate.put_backend(spec("a", 2), 2.0)
    assert granted(gate) == [waiting]
    seat = gate.seats.by_name["a"]
    assert (seat.standing.health, seat.failed, seat.dispatched_by_pool) == (
        Health.STARTING, 1, {"m": 1},
    )  # fmt: skip


def test_a_removed_backend_keeps_its_slots_until_they_end_and_takes_no_more() -> None:
    gate = gate_with(spec("a", 2), spec("b", 1))
    lease = leased(gate, 0.0, ask(backend="a"))
    gate.remove_backend("a", 1.0)
    assert gate.seats.by_name["a"].shown_state is OperatorState.DRAIN
    assert leased(gate, 1.0).backend == "b"
    parked(gate, 1.0)
    gate.put_backend(spec("a", 1), 2.0)
    assert gate.take_effects() == [], "the slot held since before the removal was forgotten"
    gate.release(lease, OK, 3.0)
    assert len(grants(gate.take_effects())) == 1


def test_a_lease_without_a_slot_may_outlast_its_backend() -> None:
    gate = gate_with(spec("a", 1))
    lease = leased(gate, 0.0, ask(gated=False))
    gate.remove_backend("a", 1.0)
    gate.release(lease, OK, 2.0)
    assert (gate.open, gate.finished) == (0, 1)


def test_a_lease_without_a_slot_does_not_take_out_a_newcomer_of_the_same_name() -> None:
    gate = gate_with(spec("a", 1))
    lease = leased(gate, 0.0, ask(gated=False))
    gate.remove_backend("a", 1.0)
    gate.seats.retired.clear()
    gate.put_backend(spec("a", 1), 4000.0)
    gate.release(lease, OK, 4001.0)
    leased(gate, 4002.0)


def test_what_takes_no_slot_is_served_by_full_and_by_closed_backends() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1))
    for _ in range(2):
        gate.release(leased(gate, 0.0), FULL, 0.0)
    assert [seat.limit for seat in gate.seats.by_name.values()] == [0, 0]
    lease = leased(gate, 0.0, ask(gated=False))
    assert lease.seat.in_flight == 0
    gate.release(lease, OK, 0.0)
    assert lease.seat.in_flight == 0


def test_a_grant_that_was_never_sent_counts_for_nothing() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    gate.note_dispatch(running)
    for _ in range(4):
        parked(gate, 0.0)
    gate.release(running, OK, 1.0)
    for _ in range(4):
        ((_, lease),) = grants(gate.take_effects())
        gate.release(lease, GONE, 1.0)
    assert gate.seats.by_name["a"].cancelled == 0
    assert gate.pools["m"].drain.per_second(1.0) is None, "five finishes were counted"


# ---- when the last backend goes -----------------------------------------------------------------


@pytest.mark.parametrize("how", ["down", "drain", "maint", "removed", "unlisted"])
def test_the_parked_stay_when_the_last_backend_goes_and_are_served_by_the_next(how: str) -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    match how:
        case "down":
            gate.observe_probe("a", Probe(ProbeResult.REFUSED), 1.0)
        case "removed":
            gate.remove_backend("a", 1.0)
        case "unlisted":
            gate.put_backend(spec("a", 1, models=("z",)), 1.0)
        case _:
            gate.set_operator_state("a", OperatorState(how), 1.0)
    assert gate.take_effects() == []
    assert gate.pools["m"].depth == 1
    fresh = refused(gate, 2.0)
    assert fresh.reason is Reason.NO_BACKENDS
    gate.put_backend(spec("b", 1), 3.0)
    assert granted(gate) == [ticket]


def test_the_parked_of_a_pool_without_backends_still_expire() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.remove_backend("a", 1.0)
    gate.advance(30.0)
    assert turned_away(gate.take_effects()) == [(ticket, Reason.QUEUE_TIMEOUT)]


def test_the_parked_that_no_cap_covers_any_more_are_answered_at_once() -> None:
    gate = gate_with(spec("a", 1))
    leased(gate, 0.0)
    ticket, small = parked(gate, 0.0, ask(tokens=100)), parked(gate, 0.0, ask(tokens=50))
    gate.put_backend(spec("a", 1, cap=50), 1.0)
    assert turned_away(gate.take_effects()) == [(ticket, Reason.REQUEST_TOO_LARGE)]
    assert small.state.name == "PARKED"


@pytest.mark.parametrize(
    ("rules", "parks"),
    [
        (GateRules(queue_enabled=True), False),
        (GateRules(hold_when_down=True), True),
        (GateRules(mode=Mode.QUEUE_ALL), True),
    ],
)
def test_a_known_model_without_a_live_backend_is_refused_or_held(
    rules: GateRules, parks: bool
) -> None:
    gate = gate_with(spec("a", 1), rules=rules)
    gate.observe_probe("a", Probe(ProbeResult.LOADING), 0.0)
    found = gate.admit(ask(), 0.0)
    assert isinstance(found, Ticket) is parks
    if isinstance(found, Refusal):
        assert (found.reason, found.temporary) == (Reason.NO_BACKENDS, True)
    held = gate_with(rules=replace(rules, pools={"m": PoolRules()}))
    assert isinstance(held.admit(ask(), 0.0), Ticket) is parks


def test_a_held_pool_with_nothing_in_service_counts_as_one_default_backend() -> None:
    gate = gate_with(rules=replace(QUEUE_ALL, pools={"m": PoolRules()}))
    assert gate.concurrency(gate.pools["m"]) == 32
    assert gate.ceiling(gate.pools["m"]) == 32_000


def test_pool_concurrency_counts_the_down_and_not_the_drained() -> None:
    gate = gate_with(spec("a", 2), spec("b", 3), spec("c", 0), spec("d", None), spec("e", 5))
    pool = gate.pools["m"]
    assert gate.concurrency(pool) == 2 + 3 + 32 + 32 + 5
    gate.observe_probe("a", Probe(ProbeResult.REFUSED), 0.0)
    gate.set_operator_state("b", OperatorState.DRAIN, 0.0)
    gate.set_operator_state("c", OperatorState.MAINT, 0.0)
    gate.remove_backend("e", 0.0)
    assert gate.concurrency(pool) == 2 + 32


# ---- one named backend, rates, shutdown ---------------------------------------------------------


def test_a_request_for_the_maker_of_an_id_goes_there_or_nowhere() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1))
    wanted = ask(backend="b")
    assert leased(gate, 0.0, wanted).backend == "b"
    assert refused(gate, 0.0, wanted).reason is Reason.GATE
    assert leased(gate, 0.0, replace(wanted, gated=False)).backend == "b"
    gate.observe_probe("b", Probe(ProbeResult.REFUSED), 0.0)
    assert refused(gate, 0.0, wanted).reason is Reason.NO_BACKENDS
    assert refused(gate, 0.0, ask(backend="zzz")).reason is Reason.NO_BACKENDS


def test_the_rate_of_a_model_is_counted_once_a_request_and_only_when_admitted() -> None:
    rules = replace(QUEUED, pools={"m": PoolRules(max_requests_per_minute=3, max_depth=1)})
    gate = gate_with(spec("a", 1), rules=rules)
    lease = leased(gate, 0.0)
    parked(gate, 1.0)
    assert refused(gate, 1.0).reason is Reason.QUEUE_FULL
    gate.release(lease, FULL, 2.0)
    parked(gate, 2.0, place=lease.place)
    gate.put_backend(spec("b", 3), 3.0)
    leased(gate, 3.0)
    refusal = refused(gate, 4.0)
    assert (refusal.reason, refusal.retry_after_s) == (Reason.RATE_LIMITED, 56.0)
    leased(gate, 4.0, ask(gated=False))
    leased(gate, 60.0)


def test_a_parked_request_that_is_refused_after_all_gives_its_place_in_the_rate_back() -> None:
    rules = replace(QUEUED, pools={"m": PoolRules(max_requests_per_minute=2)})
    gate = gate_with(spec("a", 1), rules=rules)
    lease = leased(gate, 0.0)
    parked(gate, 1.0)
    assert refused(gate, 2.0).reason is Reason.RATE_LIMITED
    gate.advance(31.0)
    assert [reason for _, reason in turned_away(gate.take_effects())] == [Reason.QUEUE_TIMEOUT]
    # One that was sent to a backend stays counted, however it ends.
    again = parked(gate, 32.0)
    gate.release(lease, OK, 33.0)
    assert granted(gate) == [again]
    assert refused(gate, 34.0).reason is Reason.RATE_LIMITED
    gate.drain(35.0, serve_parked=False)


@pytest.mark.parametrize("serve_parked", [True, False])
def test_a_draining_router_answers_or_serves_the_parked_and_refuses_the_rest(
    serve_parked: bool,
) -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.drain(1.0, serve_parked=serve_parked)
    assert refused(gate, 1.0).reason is Reason.SHUTTING_DOWN
    effects = gate.take_effects()
    assert turned_away(effects) == ([] if serve_parked else [(ticket, Reason.SHUTTING_DOWN)])
    gate.release(running, FULL, 2.0)
    found = gate.admit(running.ask, 2.0, running.place)
    assert isinstance(found, Ticket) is serve_parked
    if serve_parked:
        gate.advance(2.25)
        assert len(granted(gate)) == 1


def test_counters_of_a_pool_that_nobody_serves_are_kept_for_an_hour() -> None:
    gate = gate_with(spec("a", 1))
    gate.note_rejected("m", Reason.GATE, 0.0)
    gate.remove_backend("a", 10.0)
    gate.put_backend(spec("b", 1, models=("n",)), 3610.0)
    assert gate.pools["m"].rejected[Reason.GATE] == 1
    gate.put_backend(spec("c", 1, models=("n",)), 3611.0)
    assert "m" not in gate.pools


def test_refusals_are_counted_by_pool_and_unknown_names_share_one() -> None:
    gate = gate_with(spec("a", 1))
    for pool in ("m", "zzz", None):
        gate.note_rejected(pool, Reason.GATE, 0.0)
    assert gate.rejected[Reason.GATE] == 3
    assert gate.pools["m"].rejected[Reason.GATE] == 1
    assert gate.pools[UNKNOWN_POOL].rejected[Reason.GATE] == 2
    assert "zzz" not in gate.pools


def test_an_embedding_request_is_not_sent_to_a_generator() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1, serves=(Capability.EMBED,)))
    wanted = ask(capability=Capability.EMBED)
    assert leased(gate, 0.0, wanted).backend == "b"
    parked(gate, 0.0, wanted)


def test_a_request_of_a_pool_whose_backend_went_is_not_taken_for_a_name_of_nobody() -> None:
    gate = gate_with(spec("a", 1), spec("new", 1, models=None))
    leased(gate, 0.0)
    ticket = parked(gate, 0.0)
    gate.remove_backend("a", 1.0)
    gate.put_backend(spec("new", 1, models=("z",)), 2.0)
    assert (gate.take_effects(), ticket.pool_name) == ([], "m")
    gate.put_backend(spec("new", 1, models=("z", "m")), 3.0)
    assert granted(gate) == [ticket]


def test_a_late_timer_is_made_up_for_by_the_end_of_any_request() -> None:
    gate = gate_with(spec("a", 1), spec("b", 1, models=("n",)))
    other = leased(gate, 0.0, ask("n"))
    gate.release(leased(gate, 0.0), FULL, 0.0)
    waiting = parked(gate, 0.0)
    # It says nothing about its backend, so nothing else is looked at on its account.
    gate.release(other, GONE, 0.5)
    assert granted(gate) == [waiting]


def test_the_class_decides_between_lanes_before_the_size() -> None:
    gate = gate_with(spec("a", 1, models=("m", "n")), spec("b", 1, models=("n",)))
    running = leased(gate, 0.0, ask("m"))
    leased(gate, 0.0, ask("n"))
    small = parked(gate, 1.0, ask("m", tokens=1))
    urgent = parked(gate, 2.0, ask("n", tokens=900, priority=HIGH))
    assert serve_all(gate, running, 3.0) == [urgent, small]


def test_a_reparked_request_keeps_the_ttl_it_was_first_parked_under() -> None:
    gate = gate_with(spec("a", 1))
    running = leased(gate, 0.0)
    parked(gate, 0.0)
    gate.release(running, OK, 4.0)
    ((_, lease),) = grants(gate.take_effects())
    gate.set_rules(replace(QUEUED, queue_ttl_s=500.0), 5.0)
    gate.release(lease, FULL, 9.0)
    assert parked(gate, 9.0, place=lease.place).deadline == 9.0 + 26.0
