"""Every public case has a test that names it, or a reason why it cannot apply."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import yaml

from tests.shared_files import shared_path

HERE = Path(__file__).parent
CASE = re.compile(r"bug_(\d{3})(?=_)")
"""A test may answer several cases: test_bug_018_bug_019_..."""
LEAST_REASON_CHARS = 40


def written() -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every test of this folder, as it is written."""
    return [
        node
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    ]


def named(*, on_a_lane: bool = False) -> set[str]:
    """The ids in the names of tests. on_a_lane: only of those that run on every lane."""
    return {
        f"BUG-{number}"
        for test in written()
        for number in CASE.findall(test.name)
        if not on_a_lane or _sees_lanes(test)
    }


def _sees_lanes(test: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether it is given each lane in turn, or goes through all of them itself."""
    given = {argument.arg for argument in test.args.args}
    used = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    return "lane" in given or "LANES" in used


def excused() -> dict[str, str]:
    """The ids that cannot apply, and why."""
    return yaml.safe_load((HERE / "not_applicable.yaml").read_text()) or {}


def reported() -> set[str]:
    text = shared_path("cases/public-bug-reports.jsonl").read_text()
    return {json.loads(line)["id"] for line in text.splitlines()}


def test_every_public_case_has_a_test_or_a_reason() -> None:
    missing = sorted(reported() - named() - set(excused()))
    assert not missing, f"{len(missing)} cases without a test: {' '.join(missing)}"


def test_no_test_or_reason_names_a_case_that_does_not_exist() -> None:
    assert not (named() | set(excused())) - reported()


def test_no_case_is_both_tested_and_excused() -> None:
    assert not named() & set(excused())


def test_every_reason_is_a_sentence() -> None:
    assert all(len(reason) >= LEAST_REASON_CHARS for reason in excused().values())


def test_every_case_runs_on_every_lane() -> None:
    assert named() == named(on_a_lane=True)


def test_no_case_may_be_skipped_or_expected_to_fail() -> None:
    for path in HERE.glob("*.py"):
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        assert not names & {"skip", "skipif", "xfail", "importorskip"}, path.name
