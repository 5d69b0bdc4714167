"""The log names each turn of a backend's health, and a backend that flaps does not fill it."""

from __future__ import annotations

import logging

import pytest

from lifeboat.core.health import Probe, ProbeResult, Standing
from lifeboat.core.vocabulary import Outcome, Verdict
from lifeboat.fleet.turns import LINE_EVERY_S, Turns
from tests.fleet.scripted import backend, house_of, serving, until

ERROR, OK = Outcome(Verdict.SERVER_ERROR, 500), Outcome(Verdict.ANSWERED, 200)
REFUSED, LOADING = Outcome(Verdict.REFUSED), Outcome(Verdict.LOADING, 503)
SUSPECT = "3 failures in a row, the last: server error (status 500)"


class Scene:
    """One backend; each look is later than the pause between two lines."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.standing = Standing()
        self.now = 0.0

    def after(self, *outcomes: Outcome, later_s: float = LINE_EVERY_S) -> list[str]:
        for outcome in outcomes:
            self.standing.observe_outcome(outcome, self.now)
        self.now += later_s
        return self.turns.look({"a": self.standing}, self.now)


def test_each_turn_is_a_line_with_both_healths_and_the_reason() -> None:
    scene = Scene()
    assert scene.after(OK) == [], "that it is up is no news at the start"
    assert scene.after(ERROR, ERROR) == []
    assert scene.after(ERROR) == [f"backend a: health up -> suspect: {SUSPECT}"]
    assert scene.after(OK) == ["backend a: health suspect -> up"]
    assert scene.after(REFUSED) == ["backend a: health up -> down: connection refused"]
    assert scene.after(LOADING) == [
        "backend a: health down -> loading: the server is loading its model"
    ]
    assert scene.after(OK) == ["backend a: health loading -> up"]


def test_what_lasts_is_told_once() -> None:
    scene = Scene()
    assert len(scene.after(REFUSED)) == 1
    for _ in range(100):
        refused = Probe(ProbeResult.REFUSED, "no route")
        scene.standing.observe_probe(refused, scene.now, may_eject=True, quiet_s=15.0)
        assert scene.after() == []


def test_a_backend_that_flaps_gets_a_line_now_and_then_that_counts_the_turns() -> None:
    scene = Scene()
    assert scene.after(OK) == []
    lines = [
        line for _ in range(100) for line in scene.after(ERROR, ERROR, ERROR, OK, later_s=0.125)
    ]
    assert lines == [
        f"backend a: health up -> up, 2 turns between not logged; it was {SUSPECT}",
        f"backend a: health up -> up, 80 turns between not logged; it was {SUSPECT}",
        f"backend a: health up -> up, 80 turns between not logged; it was {SUSPECT}",
    ]
    assert scene.after(REFUSED) == [
        "backend a: health up -> down, 38 turns between not logged: connection refused"
    ]


def test_a_turn_soon_after_a_line_is_told_when_the_pause_is_over() -> None:
    scene = Scene()
    assert len(scene.after(REFUSED)) == 1
    assert scene.after(OK, later_s=1.0) == []
    assert scene.after() == ["backend a: health down -> up"]


def test_another_server_under_the_name_is_compared_with_the_one_before() -> None:
    scene = Scene()
    scene.after(REFUSED)
    scene.standing = Standing()
    assert scene.after() == []
    assert scene.after(OK) == ["backend a: health down -> up"]
    scene.standing = Standing()
    assert scene.after(OK) == []
    assert scene.turns.look({}, scene.now) == []
    assert scene.after(REFUSED) == [
        "backend a: health starting -> down, 1 turn between not logged: connection refused"
    ]


async def test_the_log_names_a_backend_that_goes_and_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def logged() -> list[tuple[int, str]]:
        return [
            (one.levelno, one.getMessage()) for one in caplog.records if "->" in one.getMessage()
        ]

    async with serving() as [server], house_of(backend("a", server)) as house:
        await until(lambda: house.health("a") == "up")
        assert logged() == []
        await server.down()
        await until(lambda: len(logged()) == 1)
        down = "backend a: health up -> down: connection refused"
        assert logged() == [(logging.WARNING, down)]
        await server.up()
        await until(lambda: len(logged()) == 2, within_s=30.0)
        assert logged()[1] == (logging.WARNING, "backend a: health down -> up")
