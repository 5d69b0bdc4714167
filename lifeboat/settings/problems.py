"""What is wrong with a configuration: collected to the end, so that one start names every fault.

Each problem names the key, the value, the rule it breaks and the remedy. Values of secrets are
never shown. Held by tests/settings/test_load.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

HIDDEN = "(hidden)"
"""Stands for the value of a secret."""

_LONGEST_SHOWN = 80
"""Characters of a value that a message repeats: enough to recognise it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault.

    where: `environment`, `flag`, or the file with its line.
    key: the variable, flag or YAML path. value: as written, shortened; empty where none was given.
    rule: what is allowed. remedy: what to do.
    """

    where: str
    key: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value else ""
        return f"{self.where}: {self.key}{shown}: {self.rule}. {self.remedy}"


class ConfigErrors(Exception):
    """A configuration that cannot start; `problems` has all of its faults."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[str] = ()) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(slots=True)
class Findings:
    """Collects problems and warnings while a configuration is read."""

    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[str] = field(default_factory=list[str])

    def refuse(self, where: str, key: str, value: object, rule: str, remedy: str) -> None:
        """Record a problem; `value` None means that none was given."""
        shown = "" if value is None else show(value)
        self.problems.append(Problem(where, key, shown, rule, remedy))

    def warn(self, text: str) -> None:
        """Record a warning."""
        self.warnings.append(text)


def show(value: object) -> str:
    """Return a value as a message repeats it: quoted where it is text, shortened, on one line."""
    text = value if value is HIDDEN else repr(value)
    assert isinstance(text, str)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word closest to `word`, None where nothing comes close.

    likeness: of what comes close, from 0 to 1 for the same word.
    """
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown key: the nearest known one, else all of them."""
    choices = sorted(known)
    match = nearest(word, choices)
    if match is not None:
        return f"Did you mean {match}?"
    return f"Known here: {', '.join(choices)}."
