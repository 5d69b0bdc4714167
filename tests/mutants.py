"""Each hand-made mutant of tests/mutants.toml must make its tests fail: `make mutants`.

    python -m tests.mutants [WORD]     # only the mutants whose name contains WORD

A mutant is an exact text replacement, applied to a copy of the package in a temporary directory;
its tests run there, with fixed examples and no shrinking. A mutant that survives, or whose text is
not found exactly once, fails the run: either a law lost its test, or the code moved on.
"""

# It reports on a terminal.
# ruff: noqa: T201
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
WORKERS = min(4, os.cpu_count() or 1)
LONGEST_RUN_S = 120.0
"""A mutant that makes its tests hang is dead as well."""
LONGEST_SOUND_RUN_S = 900.0
"""All of the tests, once, without any."""

PROFILE = """

from hypothesis import Phase, settings

settings.register_profile(
    "mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("mutants")
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: in `file`, `old` (which stands there once) becomes `new`; `tests` must see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutants(word: str) -> list[Mutant]:
    rows = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]
    mutants = [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    return [mutant for mutant in mutants if word in mutant.name]


def copy_tree(target: Path) -> None:
    """Copy what the tests that mutants name need."""
    ignore = shutil.ignore_patterns("__pycache__")
    folders = (
        "conformance", "core", "door", "edge_tables", "fuzz", "intake", "observe", "tune", "wire",
    )  # fmt: skip
    for name in ("lifeboat", *(f"tests/{folder}" for folder in folders)):
        shutil.copytree(ROOT / name, target / name, ignore=ignore)
    files = ("__init__.py", "peers.py", "running.py", "shared_files.py")
    for name in (*(f"tests/{file}" for file in files), "pyproject.toml"):
        shutil.copy(ROOT / name, target / name)
    conftest = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (target / "tests" / "conftest.py").write_text(conftest + PROFILE, encoding="utf-8")


def tests_pass(tree: Path, tests: tuple[str, ...], longest_s: float = LONGEST_RUN_S) -> bool:
    """Run tests in a copy; raises RuntimeError where they could not even be collected."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True,
            timeout=longest_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.returncode == 0


def judge(mutant: Mutant, trees: SimpleQueue[Path]) -> str | None:
    """Return what is wrong with a mutant, None when it died as it should."""
    tree = trees.get()
    path = tree / mutant.file
    sound = path.read_text(encoding="utf-8")
    try:
        found = sound.count(mutant.old)
        if found != 1:
            return f"its text stands {found} times in {mutant.file}"
        path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
        return "SURVIVED" if tests_pass(tree, mutant.tests) else None
    except RuntimeError as error:
        return str(error)
    finally:
        path.write_text(sound, encoding="utf-8")
        trees.put(tree)


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    mutants = read_mutants(word)
    if not mutants:
        print(f"no mutant has {word!r} in its name")
        return 2
    every_test = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    with tempfile.TemporaryDirectory(prefix="mutants-") as root:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            tree = Path(root) / str(number)
            copy_tree(tree)
            trees.put(tree)
        if not tests_pass(Path(root) / "0", every_test, LONGEST_SOUND_RUN_S):
            print("the tests fail without any mutant")
            return 1
        with ThreadPoolExecutor(WORKERS) as pool:
            faults = list(pool.map(lambda mutant: judge(mutant, trees), mutants))
    for mutant, fault in zip(mutants, faults, strict=True):
        print(f"{'died' if fault is None else 'FAULT':5}  {mutant.name}")
        if fault is not None:
            print(f"       {fault}")
    left = sum(fault is not None for fault in faults)
    print(f"{len(mutants) - left} of {len(mutants)} mutants died")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
