"""The standing of a backend: facts act at once, suspicion needs repetition, busy is not down."""

from __future__ import annotations

import pytest

from lifeboat.core.health import LONGEST_PAUSE_S, Probe, ProbeResult, Standing
from lifeboat.core.vocabulary import Health, Outcome, Verdict
from tests.core.building import FULL, GONE, OK, REFUSED, RESET, ask, gate_with, leased, parked, spec

ERROR = Outcome(Verdict.SERVER_ERROR, 500)
NOT_FOUND = Outcome(Verdict.ANSWERED, 404)
FIRST_BYTE = Outcome(Verdict.FIRST_BYTE_TIMEOUT)


def standing(*outcomes: Outcome) -> Standing:
    found = Standing()
    for outcome in outcomes:
        found.observe_outcome(outcome, 0.0)
    return found


def probe(found: Standing, result: ProbeResult, now: float = 100.0, may_eject: bool = True) -> bool:
    return found.observe_probe(Probe(result), now, may_eject=may_eject, quiet_s=15.0)


@pytest.mark.parametrize(
    ("outcomes", "health"),
    [
        ([], Health.STARTING),
        ([OK], Health.UP),
        ([NOT_FOUND], Health.STARTING),
        ([REFUSED], Health.DOWN),
        ([OK, REFUSED], Health.DOWN),
        ([REFUSED, OK], Health.UP),
        ([Outcome(Verdict.LOADING, 503)], Health.LOADING),
        ([ERROR, ERROR], Health.STARTING),
        ([ERROR, RESET, FIRST_BYTE], Health.SUSPECT),
        ([Outcome(Verdict.UNREACHABLE)] * 3, Health.SUSPECT),
        ([Outcome(Verdict.IDLE_TIMEOUT)] * 3, Health.SUSPECT),
        ([ERROR, ERROR, OK, ERROR, ERROR], Health.UP),
        ([ERROR, ERROR, NOT_FOUND, ERROR], Health.SUSPECT),
        ([FULL] * 9, Health.STARTING),
        ([GONE] * 9, Health.STARTING),
        ([Outcome(Verdict.ABANDONED)] * 9, Health.STARTING),
        ([Outcome(Verdict.THROTTLED, 429)] * 9, Health.STARTING),
        ([ERROR, ERROR, ERROR, OK], Health.UP),
        ([ERROR, ERROR, ERROR, NOT_FOUND], Health.SUSPECT),
    ],
)
def test_what_requests_say_of_a_backend(outcomes: list[Outcome], health: Health) -> None:
    found = standing(*outcomes)
    assert found.health is health
    assert found.live is (health not in (Health.DOWN, Health.LOADING))


def test_a_suspect_gets_one_trial_after_a_pause_that_doubles() -> None:
    found = standing(ERROR, ERROR, ERROR)
    now, pauses = 0.0, []
    for _ in range(7):
        pauses.append(found.trial_at - now)
        assert found.suspect_allowance(found.trial_at - 0.001) == 0
        assert found.suspect_allowance(found.trial_at) == 1
        now = found.trial_at
        found.observe_outcome(ERROR, now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, LONGEST_PAUSE_S]
    found.observe_outcome(OK, now)
    assert found.suspect_allowance(now) is None
    for _ in range(3):
        found.observe_outcome(ERROR, now)
    assert found.trial_at == now + 1.0


def test_requests_from_before_the_pause_do_not_lengthen_it() -> None:
    found = standing(ERROR, ERROR, ERROR)
    assert found.observe_outcome(ERROR, 0.5) is False
    assert found.trial_at == 1.0


@pytest.mark.parametrize(
    ("results", "may_eject", "health"),
    [
        ([ProbeResult.OK], True, Health.UP),
        ([ProbeResult.REFUSED], False, Health.DOWN),
        ([ProbeResult.LOADING], False, Health.LOADING),
        ([ProbeResult.LOADING, ProbeResult.OK], False, Health.UP),
        ([ProbeResult.FAILED] * 2, True, Health.STARTING),
        ([ProbeResult.FAILED] * 3, True, Health.DOWN),
        ([ProbeResult.FAILED] * 9, False, Health.STARTING),
        ([ProbeResult.FAILED, ProbeResult.FAILED, ProbeResult.OK, ProbeResult.FAILED], True,
         Health.UP),
    ],
)  # fmt: skip
def test_what_probes_say_of_a_backend(
    results: list[ProbeResult], may_eject: bool, health: Health
) -> None:
    found = Standing(probe_threshold=3)
    for result in results:
        probe(found, result, may_eject=may_eject)
    assert found.health is health


@pytest.mark.parametrize(("age_s", "health"), [(14.9, Health.UP), (15.0, Health.DOWN)])
def test_slow_probes_beside_live_answers_say_nothing(age_s: float, health: Health) -> None:
    found = standing(OK)
    for at in (1.0, 2.0):
        probe(found, ProbeResult.FAILED, at)
    found.observe_progress(50.0)
    probe(found, ProbeResult.FAILED, 50.0 + age_s)
    assert found.health is health


def test_a_probe_does_not_clear_a_suspect_but_a_request_does() -> None:
    found = standing(ERROR, ERROR, ERROR)
    assert probe(found, ProbeResult.OK) is False
    assert found.health is Health.SUSPECT
    found.observe_outcome(OK, 101.0)
    assert found.health is Health.UP


@pytest.mark.parametrize(
    ("before", "epochs"),
    [([], 0), ([OK], 0), ([RESET], 1), ([OK, RESET], 1), ([REFUSED], 1), ([ERROR] * 3, 1)],
)
def test_the_epoch_grows_when_a_backend_shows_itself_good_after_a_failure(
    before: list[Outcome], epochs: int
) -> None:
    found = standing(*before)
    found.observe_outcome(OK, 1.0)
    found.observe_outcome(OK, 2.0)
    assert found.epoch == epochs
    probed = standing(*before)
    probe(probed, ProbeResult.OK)
    assert probed.epoch == (0 if probed.health is Health.SUSPECT else epochs)


def test_the_detail_says_why() -> None:
    assert standing(REFUSED).detail == "connection refused"
    suspect = standing(ERROR, ERROR, ERROR).detail
    assert suspect is not None and "3 failures" in suspect and "status 500" in suspect
    assert standing(REFUSED, OK).detail is None


# ---- inside the gate: never the last live one ---------------------------------------------------


def test_the_last_live_backend_is_never_closed_by_suspicion() -> None:
    gate = gate_with(spec("a", 4), spec("b", 4))
    for _ in range(3):
        gate.release(leased(gate, 0.0), ERROR, 0.0)
        gate.release(leased(gate, 0.0), ERROR, 0.0)
    assert {seat.standing.health for seat in gate.seats.by_name.values()} == {Health.SUSPECT}
    assert [seat.limit for seat in gate.seats.by_name.values()] == [4, 4]


def test_a_suspect_is_closed_while_another_can_be_trusted_and_reopens_when_that_goes() -> None:
    gate = gate_with(spec("a", 2), spec("b", 1))
    for _ in range(3):
        lease = leased(gate, 0.0)
        while lease.backend != "a":
            lease = leased(gate, 0.0)
        gate.release(lease, ERROR, 0.0)
    seats = gate.seats.by_name
    assert (seats["a"].limit, seats["a"].reason.value) == (0, "suspect")
    waiting = parked(gate, 0.0)
    gate.observe_probe("b", Probe(ProbeResult.REFUSED), 0.5)
    assert [effect.ticket for effect in gate.take_effects()] == [waiting]
    assert seats["a"].limit == 2


def test_a_suspect_takes_one_trial_at_a_time() -> None:
    gate = gate_with(spec("a", 8), spec("b", 1))
    blocker = leased(gate, 0.0)
    leases = [leased(gate, 0.0) for _ in range(4)]
    for lease in [one for one in (blocker, *leases) if one.backend == "a"][:3]:
        gate.release(lease, ERROR, 0.0)
    held = gate.seats.by_name["a"].in_flight
    waiting = [parked(gate, 0.5) for _ in range(3)]
    assert gate.next_event_at(0.5) == 1.0
    gate.advance(1.0)
    assert len(gate.take_effects()) == 1 - held
    assert gate.seats.by_name["a"].limit == 1
    assert waiting


def test_probes_do_not_eject_the_last_live_backend_of_any_of_its_pools() -> None:
    gate = gate_with(spec("a", 1, models=("m", "n")), spec("b", 1, models=("m",)))
    for _ in range(9):
        gate.observe_probe("a", Probe(ProbeResult.FAILED), 100.0)
        gate.observe_probe("b", Probe(ProbeResult.FAILED), 100.0)
    healths = {name: seat.standing.health for name, seat in gate.seats.by_name.items()}
    assert healths == {"a": Health.STARTING, "b": Health.DOWN}


def test_the_end_of_a_request_that_shows_one_down_opens_the_suspect_that_is_left() -> None:
    gate = gate_with(spec("a", 2), spec("b", 1))
    other = leased(gate, 0.0, ask(backend="b"))
    for _ in range(3):
        gate.release(leased(gate, 0.0, ask(backend="a")), ERROR, 0.0)
    assert gate.seats.by_name["a"].limit == 0
    waiting = parked(gate, 0.0)
    gate.release(other, REFUSED, 0.5)
    assert [effect.ticket for effect in gate.take_effects()] == [waiting]


def test_good_probes_do_not_clear_what_requests_counted() -> None:
    standing = Standing()
    fault = Outcome(Verdict.SERVER_ERROR, 500)
    for at in range(3):
        standing.observe_outcome(fault, float(at))
        standing.observe_probe(Probe(ProbeResult.OK), at + 0.5, may_eject=True, quiet_s=15.0)
    assert standing.health is Health.SUSPECT


def test_one_good_probe_after_a_failure_lets_excluders_back_once() -> None:
    standing = Standing()
    standing.observe_outcome(Outcome(Verdict.RESET), 0.0)
    epoch = standing.epoch
    for at in range(1, 4):
        standing.observe_probe(Probe(ProbeResult.OK), float(at), may_eject=True, quiet_s=15.0)
    assert standing.epoch == epoch + 1
