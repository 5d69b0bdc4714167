"""Labels are few and their own; totals never fall."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lifeboat.observe.series import OTHER, RETENTION_S, Gone, Labels, Totals


def test_a_label_given_back_can_be_given_again() -> None:
    labels = Labels(discovered_limit=1)
    assert labels.admit("a", configured=False) == "a"
    assert labels.admit("b", configured=False) == OTHER
    labels.forget_missing(["b"], 0.0)
    assert labels.forget_missing(["b"], RETENTION_S) == Gone(frozenset("a"), frozenset("a"))
    assert labels.admit("b", configured=False) == OTHER, "what it was counted under so far"
    assert labels.admit("c", configured=False) == "c"


def test_the_label_other_is_never_dropped() -> None:
    labels = Labels(discovered_limit=0)
    labels.admit("a", configured=False)
    labels.forget_missing([], 0.0)
    assert labels.forget_missing([], RETENTION_S) == Gone(frozenset("a"), frozenset())


def test_a_name_that_becomes_configured_frees_a_discovered_label() -> None:
    labels = Labels(discovered_limit=1)
    labels.admit("a", configured=False)
    labels.admit("a", configured=True)
    assert labels.admit("b", configured=False) == "b"


NAMES = st.sampled_from("abcdef")


@given(
    st.integers(0, 3),
    st.lists(st.tuples(NAMES, st.booleans(), st.sets(NAMES), st.floats(0.0, 2000.0)), max_size=40),
)
def test_no_two_names_share_a_label_and_discovered_ones_keep_to_their_limit(
    limit: int, steps: list[tuple[str, bool, set[str], float]]
) -> None:
    labels = Labels(limit)
    configured: set[str] = set()
    now = 0.0
    for name, is_configured, present, step_s in steps:
        now += step_s
        labels.admit(name, is_configured)
        if is_configured:
            configured.add(name)
        own = [labels[known] for known in "abcdef" if known in labels and labels[known] != OTHER]
        assert len(own) == len(set(own))
        assert sum(label not in configured for label in own) <= limit
        gone = labels.forget_missing(present, now)
        assert not gone.names & present
        configured -= gone.names


@given(st.lists(st.integers(0, 50), max_size=50))
def test_a_total_never_falls_whatever_its_source_shows(readings: list[int]) -> None:
    totals = Totals()
    totals.ensure(("a",))
    before = 0.0
    for value in readings:
        totals.read(("a",), value, ("a",))
        assert totals.values["a",] >= before
        before = totals.values["a",]


@given(st.lists(st.integers(0, 50), min_size=1).map(sorted))
def test_a_total_of_a_rising_source_is_the_source(readings: list[int]) -> None:
    totals = Totals()
    for value in readings:
        totals.read(("a",), value, ("a",))
    assert totals.values["a",] == readings[-1]


def test_what_was_dropped_leaves_nothing_behind() -> None:
    totals = Totals()
    totals.read(("b1", "gone"), 5, ("b1", "gone"))
    totals.read(("b1", "many"), 5, ("b1", OTHER))
    totals.drop(1, Gone(frozenset({"gone", "many"}), frozenset({"gone"})))
    assert totals.values == {("b1", OTHER): 5}
    assert not totals._seen
