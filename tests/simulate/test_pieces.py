"""Cases, figures and charts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lifeboat.charts import Line, Mark, bar, html_page, line_chart, sparkline, ticks
from lifeboat.settings import ConfigErrors
from lifeboat.simulate.cases import Case, CaseError
from lifeboat.simulate.figures import Spread
from lifeboat.simulate.report import comparison_page, rows
from lifeboat.simulate.traces import Arrival
from tests.simulate.worlds import entry, run

BURST = [Arrival(0.0, 100, 50) for _ in range(20)]


def test_a_case_changes_settings_backends_and_engines(tmp_path: Path) -> None:
    backend = entry(max_concurrency=1)
    plain = run(tmp_path, BURST, backend)
    assert plain.answered == 1
    assert run(tmp_path, BURST, backend, case="max_concurrency=7").answered == 7
    assert run(tmp_path, BURST, backend, case="replicas=3").answered == 3
    assert run(tmp_path, BURST, backend, case="queue_enabled=true queue_max_depth=9").answered == 10
    wide = run(tmp_path, BURST, backend, case="max_concurrency=20 max_num_seqs=20")
    narrow = run(tmp_path, BURST, backend, case="max_concurrency=20 max_num_seqs=2")
    assert wide.took.mean_s < narrow.took.mean_s


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_concurrency", "is not key=value"),
        ("max_concurrency=-1", "whole number"),
        ("speed=3", "changes nothing here"),
        ("adaptive=perhaps", "adaptive=perhaps"),
    ],
)
def test_a_wrong_case_says_so(text: str, says: str) -> None:
    with pytest.raises(CaseError, match=says):
        Case.parse(text)


def test_a_wrong_value_of_a_setting_is_the_loaders_to_refuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="fastest"):
        run(tmp_path, BURST, entry(), case="mode=fastest")


def test_percentiles_are_by_nearest_rank() -> None:
    assert Spread.of([float(n) for n in range(1, 101)]) == Spread(50.5, 50.0, 95.0, 99.0)
    assert Spread.of([]) == Spread()


def test_goodput_counts_first_tokens_in_time(tmp_path: Path) -> None:
    backend = entry(max_concurrency=1)
    top = {"queue": {"enabled": True, "max_depth": 20}}
    figures = run(tmp_path, BURST, backend, objective_s=0.2, **top)
    assert 0 < figures.good < figures.answered == 20
    assert figures.goodput_per_s == pytest.approx(figures.good / figures.lasted_s)


def test_the_page_has_every_run_and_escapes_their_names(tmp_path: Path) -> None:
    figures = run(tmp_path, BURST, entry(max_concurrency=4))
    page = comparison_page([figures, figures], "<trace>")
    assert "&lt;trace&gt;" in page and "<trace>" not in page
    assert page.count("<svg") == 4
    assert dict(rows([figures]))["  gate"] == ["16"]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0.0, [0.0, 1.0]), (9.0, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]), (float("nan"), [0.0, 1.0])],
)
def test_ticks_are_round(most: float, expected: list[float]) -> None:
    assert ticks(most) == expected


def test_a_chart_keeps_its_lines_inside_its_plane() -> None:
    chart = line_chart("T", "x", "y", [Line("a & b", [(0, 0), (10, 5)])], [Mark(10, "end")])
    assert "a &amp; b" not in chart, "one line needs no legend"
    points = re.search(r'points="([^"]+)"', chart)
    assert points is not None
    for pair in points[1].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= 720 and 0 <= y <= 260
    assert "script" not in html_page("T", ["w"], [chart])


def test_bars_and_sparklines_are_in_proportion() -> None:
    assert bar(5, 10, 8) == "████    "
    assert bar(1, 0, 4) == "    "
    assert sparkline([0, 1, 2, 4], 4) == "▁▃▅█"
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
