"""The types of values a setting may have: each says its rule, parses, and gives its JSON schema.

A value comes as text (flags, environment, expanded `${VAR}`) or as what YAML made of it. Here are
the protocol and the choices; `quantities` has the numbers, `texts` the words and lists.
Held by tests/settings/test_values.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lifeboat.core.modes import MODE_ALIASES, Mode, UnknownModeError, parse_mode

JsonSchema = dict[str, object]

PLACEHOLDER_SCHEMA: JsonSchema = {"type": "string", "pattern": r"\$\{[A-Za-z_]"}
"""Any scalar of the file may be written as `${VAR}`."""


class BadValueError(ValueError):
    """The value breaks the rule of its type; the message, where there is one, is a remedy."""


class ValueType(Protocol):
    """One type of value.

    `rule` completes the sentence "the value must be ...".
    """

    @property
    def rule(self) -> str: ...

    def parse(self, raw: object, *, plain: bool = False) -> object:
        """Return the typed value; raises BadValueError.

        plain: units after a number are not accepted (the `_SEC` and `_BYTES` variables).
        """
        ...

    def schema(self) -> JsonSchema:
        """Return the JSON schema of the value in the file."""
        ...


def or_placeholder(schema: JsonSchema) -> JsonSchema:
    """Return `schema`, or a `${VAR}` in its place."""
    return {"anyOf": [schema, PLACEHOLDER_SCHEMA]}


_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false, in the spellings of the contract."""

    rule: str = "true or false (also 1/0, yes/no, on/off)"

    def parse(self, raw: object, *, plain: bool = False) -> bool:
        """Return the boolean that `raw` spells, whatever its case."""
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise BadValueError

    def schema(self) -> JsonSchema:
        """Return the schema: editors offer the two plain spellings."""
        spellings = {"enum": [True, False, "yes", "no", "on", "off", 0, 1]}
        return {"anyOf": [{"type": "boolean"}, spellings, PLACEHOLDER_SCHEMA]}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words; case does not matter."""

    words: tuple[str, ...]

    @property
    def rule(self) -> str:
        """Return the rule with all words."""
        return f"one of {', '.join(self.words)}"

    def parse(self, raw: object, *, plain: bool = False) -> str:
        """Return the word in its own spelling."""
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word not in self.words:
            raise BadValueError
        return word

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return or_placeholder({"enum": list(self.words)})


@dataclass(frozen=True, slots=True)
class ModeName:
    """A routing mode, in any of its spellings."""

    @property
    def rule(self) -> str:
        """Return the rule with the modes and their aliases."""
        aliases = ", ".join(f"{alias} = {mode.value}" for alias, mode in MODE_ALIASES.items())
        return f"one of {', '.join(mode.value for mode in Mode)} ({aliases})"

    @property
    def words(self) -> tuple[str, ...]:
        """Return the usual spellings."""
        return (*(mode.value for mode in Mode), *MODE_ALIASES)

    def parse(self, raw: object, *, plain: bool = False) -> Mode:
        """Return the mode."""
        if not isinstance(raw, str):
            raise BadValueError
        try:
            return parse_mode(raw)
        except UnknownModeError:
            raise BadValueError from None

    def schema(self) -> JsonSchema:
        """Return the schema: the usual spellings."""
        return or_placeholder({"enum": list(self.words)})
