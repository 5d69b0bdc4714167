"""Every public case has a test that names it, or a reason why it cannot apply."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from tests.shared_files import shared_path

HERE = Path(__file__).parent
TESTS = re.compile(r"^(?:async )?def test_(?:bug_\d{3}_)+\w*", re.MULTILINE)
"""A test may answer several cases: test_bug_018_bug_019_..."""
LEAST_REASON_CHARS = 40


def named() -> set[str]:
    """The ids in the names of tests."""
    names = [name for path in HERE.glob("test_*.py") for name in TESTS.findall(path.read_text())]
    return {f"BUG-{number}" for name in names for number in re.findall(r"bug_(\d{3})", name)}


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
