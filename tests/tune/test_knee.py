"""The knee: which step is enough, when to stop climbing, where to look again, what to say."""

from __future__ import annotations

import pytest

from lifeboat.tune.knee import Step, advise, between, flat, knee, ladder
from lifeboat.tune.report import advice_lines, as_json, page, rows


def step(concurrency: int, tokens_per_s: float, refused: int = 0, answers: int = 100) -> Step:
    return Step(
        concurrency=concurrency,
        tokens_per_s=tokens_per_s,
        answers_per_s=tokens_per_s / 100.0,
        first_token_s=0.01 * concurrency,
        first_token_p95_s=0.02 * concurrency,
        gap_s=0.005,
        answers=answers,
        refused=refused,
        failed=0,
    )


def steps(*rates: float) -> list[Step]:
    return [step(2**at, rate) for at, rate in enumerate(rates)]


def test_the_ladder_doubles_and_ends_at_the_most() -> None:
    assert ladder(100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert ladder(1) == [1]


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((100, 200, 400, 400, 400), 4),
        ((100, 190, 380, 399, 400), 4),
        ((100, 190, 379, 399, 400), 8),
        ((100, 100, 100), 1),
        ((100, 200, 390, 200, 100), 4),
        ((100, 200), 2),
    ],
)
def test_the_knee_is_the_smallest_step_as_good_as_the_best(
    rates: tuple[float, ...], expected: int
) -> None:
    found = knee(steps(*rates))
    assert found is not None and found.concurrency == expected


def test_a_step_with_refusals_is_no_candidate() -> None:
    found = knee([step(4, 100), step(8, 180), step(16, 500, refused=40)])
    assert found is not None and found.concurrency == 8
    few = knee([step(8, 180), step(16, 500, refused=2)])
    assert few is not None and few.concurrency == 16


def test_nothing_answered_gives_no_advice() -> None:
    assert knee([]) is None
    assert advise([step(1, 0.0, answers=0)], None) is None
    assert between([step(1, 0.0, answers=0)]) is None


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((100, 101), False),
        ((100, 101, 102), True),
        ((100, 101, 120), False),
        ((100, 200, 400, 401, 402), True),
        ((100, 200, 400, 401), False),
    ],
)
def test_two_steps_without_gain_end_the_climb(rates: tuple[float, ...], expected: bool) -> None:
    assert flat(steps(*rates)) is expected


def test_a_refusing_step_ends_the_climb() -> None:
    assert flat([step(1, 100), step(2, 200, refused=50)])


def test_the_next_look_is_halfway_below_the_knee() -> None:
    measured = steps(100, 200, 400, 800, 800)
    assert between(measured) == 6
    assert between([*measured, step(6, 600)]) == 7
    assert between([*measured, step(6, 600), step(7, 700)]) is None
    assert between([*measured, step(6, 790)]) == 5


def test_where_the_next_step_is_worse_the_next_look_is_halfway_up_to_it() -> None:
    falling = steps(100, 200, 120, 60)
    assert between(falling) == 3
    assert between(steps(100, 200, 181)) is None
    assert between([*falling, step(3, 260)]) is None
    assert between([*falling, step(3, 150)]) is None
    refusing = [*steps(100, 200, 400), step(8, 500, refused=40)]
    assert between(refusing) == 6
    assert between([*refusing, step(6, 600)]) == 7
    assert between([*refusing, step(6, 600), step(7, 500, refused=30)]) == 5
    assert between([*refusing, step(6, 300, refused=30)]) == 5
    assert between([*refusing, step(6, 410)]) == 3


def test_a_throughput_that_falls_is_said() -> None:
    advice = advise(steps(100, 200, 120, 60), None)
    assert advice is not None
    assert "at 8 the first token takes 4.0 times as long, and all together get 30%" in advice.why
    level = advise(steps(100, 200, 400, 400, 400), None)
    assert level is not None and "all together" not in level.why


def test_the_advice_names_value_cause_and_queue() -> None:
    advice = advise(steps(100, 200, 400, 400, 400), None)
    assert advice is not None
    lines = advice_lines(advice)
    assert lines[0] == "Set max_concurrency: 4"
    assert "100% of the best" in lines[1] and "4.0 times as long" in lines[1]
    assert "40 in 10 s, 120 in 30 s" in lines[2]
    assert "ceiling of 16 drains in 4.0 s" in lines[3]


def test_a_ceiling_that_cannot_drain_within_the_ttl_is_said() -> None:
    advice = advise([step(1, 10), step(2, 20), step(4, 40)], None)
    assert advice is not None
    assert advice.climbing and "--up-to" in advice.why
    assert "need 40 s to drain" in advice_lines(advice)[3]
    assert "max_depth to 12" in advice_lines(advice)[3]


def test_a_servers_slots_bound_the_advice() -> None:
    advice = advise(steps(100, 200, 400, 440), 4)
    assert advice is not None
    assert (advice.max_concurrency, advice.knee.concurrency) == (4, 8)
    assert "it has 4 slots" in advice.why
    assert not advice.climbing


def test_the_reports_hold_every_step() -> None:
    measured = steps(100, 200, 400, 400)
    advice = advise(measured, None)
    assert [row[0] for row in rows(measured)] == ["1", "2", "4", "8"]
    assert rows([step(1, 0.0)])[0][1] == "0"
    made = as_json("u", "m", measured, advice)
    assert made["max_concurrency"] == 4
    assert made["queue_depth_by_ttl_sec"]["30"] == 120
    html = page("http://h", "<m>", measured, advice)
    assert html.count("<svg") == 3 and "&lt;m&gt;" in html
    assert "Nothing was answered" in page("u", "m", [], None)
