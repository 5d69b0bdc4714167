"""What the settings mean for a pool: TTL, ceiling, whether it queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lifeboat.core.modes import Mode
from lifeboat.core.rules import GateRules, PoolRules

PLAIN = GateRules()
ALL = GateRules(mode=Mode.QUEUE_ALL)
FAST = GateRules(mode=Mode.SUPERFAST)


@pytest.mark.parametrize(
    ("rules", "own", "queues"),
    [
        (PLAIN, None, False),
        (PLAIN, True, True),
        (replace(PLAIN, queue_enabled=True), None, True),
        (replace(PLAIN, queue_enabled=True), False, False),
        (FAST, None, False),
        (replace(FAST, queue_enabled=True), None, True),
        (ALL, None, True),
        (ALL, False, True),
    ],
)
def test_whether_overflow_parks(rules: GateRules, own: bool | None, queues: bool) -> None:
    assert replace(rules, pools={"m": PoolRules(queue_enabled=own)}).queues("m") is queues


@pytest.mark.parametrize(
    ("rules", "concurrency", "ceiling"),
    [
        (PLAIN, 2, 8),
        (PLAIN, 64, 256),
        (FAST, 64, 256),
        (ALL, 2, 2000),
        (PLAIN, 0, 1),
        (replace(PLAIN, share=0.5), 2, 4),
        (replace(PLAIN, share=0.1), 1, 1),
        (replace(PLAIN, share=0.57, queue_depth_multiplier=1.0), 100, 57),
        (replace(PLAIN, queue_depth_multiplier=1.5), 3, 4),
        (replace(PLAIN, queue_depth_multiplier=0.0), 64, 0),
        (replace(PLAIN, max_depth=30), 2, 30),
        (replace(PLAIN, max_depth=0), 2, 0),
        (replace(ALL, max_depth=0), 2, 0),
        (replace(PLAIN, max_depth=30, share=0.5), 2, 15),
        (replace(PLAIN, pools={"m": PoolRules(max_depth=5)}), 2, 5),
        (replace(PLAIN, max_depth=3, pools={"m": PoolRules(max_depth=5)}), 2, 5),
        (replace(PLAIN, max_depth=3, pools={"n": PoolRules(max_depth=5)}), 2, 3),
    ],
)
def test_the_ceiling_of_a_pool(rules: GateRules, concurrency: int, ceiling: int) -> None:
    assert rules.ceiling("m", concurrency) == ceiling


def test_the_ttl_is_the_pools_own_or_the_modes() -> None:
    own = {"m": PoolRules(queue_ttl_s=120.0)}
    assert (PLAIN.ttl_of("m"), FAST.ttl_of("m"), ALL.ttl_of("m")) == (30.0, 30.0, 600.0)
    assert {replace(rules, pools=own).ttl_of("m") for rules in (PLAIN, FAST, ALL)} == {120.0}
    assert replace(PLAIN, pools=own).ttl_of("n") == 30.0


def test_who_holds_requests_while_nothing_is_up() -> None:
    assert (PLAIN.holds("m"), FAST.holds("m"), ALL.holds("m")) == (False, False, True)
    assert replace(PLAIN, hold_when_down=True).holds("m")
    own = replace(PLAIN, pools={"m": PoolRules(hold_when_down=True)})
    assert (own.holds("m"), own.holds("n")) == (True, False)


def test_the_defaults_are_the_published_ones() -> None:
    assert (PLAIN.boost_s, PLAIN.superfast_cap, PLAIN.default_max_concurrency) == (10.0, 4, 32)
    assert (PLAIN.gguf_default_max_concurrency, PLAIN.share, PLAIN.max_depth) == (16, 1.0, None)
    assert (PLAIN.depth_multiplier, ALL.depth_multiplier) == (4.0, 1000.0)
