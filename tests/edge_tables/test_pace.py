"""How long a body may take: silence by silence, and on the whole."""

from __future__ import annotations

import pytest

from lifeboat.edge.pace import LEAST_BYTES_PER_S, patience_s


@pytest.mark.parametrize(
    ("took_s", "received_bytes", "patient_s"),
    [
        (0.0, 0, 60.0),
        (59.0, 0, 1.0),
        (60.0, 0, 0.0),
        (61.0, 0, -1.0),
        # What came buys time at the least pace, and never a longer silence than the setting's.
        (61.0, 10 * LEAST_BYTES_PER_S, 9.0),
        (0.0, 10 * LEAST_BYTES_PER_S, 60.0),
        (3600.0, 3600 * LEAST_BYTES_PER_S, 60.0),
        (3600.0, 3590 * LEAST_BYTES_PER_S, 50.0),
        (3600.0, 1 << 26, 60.0),
    ],
)
def test_a_body_has_its_silence_and_then_the_least_pace(
    took_s: float, received_bytes: int, patient_s: float
) -> None:
    assert patience_s(60.0, took_s, received_bytes) == pytest.approx(patient_s)


def test_a_byte_at_a_time_is_ended_about_as_soon_as_a_silence() -> None:
    """A byte a second: each buys less time than it takes."""
    took_s, received_bytes = 0.0, 0
    while patience_s(60.0, took_s, received_bytes) >= 1.0:
        took_s, received_bytes = took_s + 1.0, received_bytes + 1
    assert 59.0 <= took_s <= 61.0


def test_a_client_at_the_least_pace_is_never_cut() -> None:
    for second in range(10_000):
        assert patience_s(60.0, float(second), second * LEAST_BYTES_PER_S) == 60.0
