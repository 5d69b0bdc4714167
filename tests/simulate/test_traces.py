"""Traces: the three formats, excerpts, and made-up arrivals."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.core.vocabulary import Priority
from lifeboat.simulate.traces import Arrival, TraceError, excerpt, read_trace, synthetic
from tests.shared_files import shared_path

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
)
MOONCAKE = (
    '{"timestamp": 500, "input_length": 6758, "output_length": 500, "hash_ids": [0]}\n'
    '{"timestamp": 2500, "input_length": 0, "output_length": 490, "hash_ids": []}\n'
)
OWN = (
    '{"at": 1, "input_tokens": 10, "output_tokens": 5, "model": "m", "priority": "high"}\n\n'
    '{"at": 3.5, "input_tokens": 11, "output_tokens": 0}\n'
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [Arrival(0.0, 4808, 10), Arrival(0.052, 3180, 8)]),
        (MOONCAKE, [Arrival(0.0, 6758, 500), Arrival(2.0, 1, 490)]),
        (OWN, [Arrival(0.0, 10, 5, "m", Priority.HIGH), Arrival(2.5, 11, 0)]),
    ],
)
def test_each_format_is_seen_from_its_keys(
    text: str, expected: list[Arrival], tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    found = read_trace(path)
    assert [one.at_s for one in found] == pytest.approx([one.at_s for one in expected], abs=1e-5)
    assert [(o.input_tokens, o.output_tokens, o.model, o.priority) for o in found] == [
        (o.input_tokens, o.output_tokens, o.model, o.priority) for o in expected
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no request"),
        ('{"at": 1}\n', "trace:1: lacks 'input_tokens'"),
        ('{"at": 1, "input_tokens": 5, "output_tokens": -1}\n', "out of range"),
        ('{"at": 1, "input_tokens": 5, "output_tokens": 1}\n{broken\n', "trace:2: is no JSON"),
        ("a,b\n1,2\n", "lacks 'at'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "trace:2:"),
    ],
)
def test_a_file_that_is_no_trace_says_where(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=says.replace("(", r"\(")):
        read_trace(path)


def test_the_recorded_traces_are_read_whole() -> None:
    azure = read_trace(shared_path("traces/azure2023_code.csv"))
    assert len(azure) == 8819
    assert 3300 < azure[-1].at_s < 3600
    mooncake = read_trace(shared_path("traces/mooncake_conversation.jsonl"))
    assert len(mooncake) == 12031
    assert max(one.input_tokens for one in mooncake) > 120_000


def test_an_excerpt_begins_at_0_and_plays_faster() -> None:
    trace = [Arrival(float(at), 1, 1) for at in range(10)]
    assert [one.at_s for one in excerpt(trace, 2.0, 4.0, 2.0)] == [0.0, 0.5, 1.0, 1.5]


def test_made_up_arrivals_come_at_their_rate_and_from_their_seed() -> None:
    trace = synthetic(20.0, 100.0, 300, 50, seed=1)
    assert len(trace) == pytest.approx(2000, rel=0.1)
    assert sum(one.input_tokens for one in trace) / len(trace) == pytest.approx(300, rel=0.1)
    assert trace == synthetic(20.0, 100.0, 300, 50, seed=1)
    assert trace != synthetic(20.0, 100.0, 300, 50, seed=2)
