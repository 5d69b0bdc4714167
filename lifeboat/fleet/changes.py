"""What the outside may change in a running fleet, as typed values: patches and registrations.

JSON becomes one of these types here and nowhere else. Held by tests/fleet/test_changes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, Literal, TypeVar, cast

from lifeboat.core.vocabulary import OperatorState
from lifeboat.settings.backends import backend_from_mapping
from lifeboat.settings.entries import BACKEND_ENTRIES
from lifeboat.settings.problems import ConfigErrors
from lifeboat.settings.quantities import Duration, Integer, TokenCap
from lifeboat.settings.shapes import BackendConfig
from lifeboat.settings.values import BadValueError, Choice

T = TypeVar("T")

INVALID, UNKNOWN, CONFLICT = 400, 404, 409
"""The statuses a change may be refused with."""
_CODES = {INVALID: "invalid_request", UNKNOWN: "backend_not_found", CONFLICT: "backend_conflict"}

SHORTEST_TTL_S = 1.0
LONGEST_TTL_S = 86_400.0
"""A heartbeat rarer than once a day is no heartbeat."""


class FleetError(Exception):
    """A change that cannot be made; nothing of it was applied.

    status: 400 for a bad value, 404 for an unknown backend, 409 for a conflict with what is there.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def code(self) -> str:
        """The `code` of its error body."""
        return _CODES[self.status]


class Unset(Enum):
    """The type of UNSET: a value that a change does not mention, where None means "reset"."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

InputCap = int | Literal["auto"]


_PATCHABLE: Mapping[str, Integer | TokenCap | Choice] = {
    "max_concurrency": Integer(0, 1_000_000),
    "max_input_tokens": TokenCap(),
    "state": Choice(tuple(state.value for state in OperatorState)),
}


@dataclass(frozen=True, slots=True)
class Patch:
    """A change of one backend; None resets a value to what is configured."""

    max_concurrency: int | Unset | None = UNSET
    max_input_tokens: InputCap | Unset | None = UNSET
    state: OperatorState | Unset | None = UNSET

    @classmethod
    def from_mapping(cls, raw: Mapping[str, object]) -> Patch:
        """Return the patch a JSON object asks for. Raises FleetError (400), naming every fault."""
        faults: list[str] = []
        values: dict[str, object] = {}
        for key, value in raw.items():
            kind = _PATCHABLE.get(key)
            if kind is None:
                faults.append(f"{key!r} cannot be changed; use {', '.join(_PATCHABLE)}")
                continue
            if value is None:
                values[key] = None
                continue
            try:
                values[key] = kind.parse(value)
            except BadValueError:
                faults.append(
                    f"{key} = {value!r} must be {kind.rule}, or null for what is configured"
                )
        if not raw:
            faults.append(f"nothing to change: give any of {', '.join(_PATCHABLE)}")
        if faults:
            raise FleetError(INVALID, "; ".join(faults))
        if isinstance(values.get("state"), str):
            values["state"] = OperatorState(cast("str", values["state"]))
        return cls(**cast("dict[str, Any]", values))


_NOT_REGISTERED = frozenset({"simulate", "replicas"})
"""Keys of the file that make no sense for a server that is already running."""
_ATTRIBUTES = {
    entry.key.split(".")[0]: entry.attribute for entry in BACKEND_ENTRIES if "." not in entry.key
}


@dataclass(frozen=True, slots=True)
class Registration:
    """A backend that announces itself, or its heartbeat.

    ttl_s: gone without another one in this time; None = stays until it is removed.
    given: the attributes of `backend` that were named; an update leaves the others as they are.
    """

    backend: BackendConfig
    ttl_s: float | None = None
    given: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.name

    def over(self, earlier: BackendConfig) -> BackendConfig:
        """Return the earlier description with what this registration names."""
        names = {field.name for field in fields(BackendConfig)} & self.given
        return replace(earlier, **{name: getattr(self.backend, name) for name in names})

    @classmethod
    def from_mapping(cls, raw: Mapping[str, object]) -> Registration:
        """Return the registration of a JSON object: the keys of the file, and `ttl`.

        Raises FleetError (400), naming every fault.
        """
        entry = {key: value for key, value in raw.items() if key != "ttl"}
        faults = [
            f"{key}: is for backends of the file only; leave it out"
            for key in sorted(_NOT_REGISTERED & entry.keys())
        ]
        if not entry.get("url"):
            faults.append("url: is missing; give the address where the backend listens")
        ttl_s = _taken(raw.get("ttl"), "ttl", Duration(SHORTEST_TTL_S, LONGEST_TTL_S).parse, faults)
        if faults:
            raise FleetError(INVALID, "; ".join(faults))
        try:
            backend = backend_from_mapping(entry)
        except ConfigErrors as errors:
            raise FleetError(
                INVALID, "; ".join(_sentence(one) for one in errors.problems)
            ) from None
        given = {_ATTRIBUTES[key] for key, value in entry.items() if key in _ATTRIBUTES and value}
        given |= {key for key in ("max_concurrency", "max_input_tokens") if entry.get(key) == 0}
        if "tls" in entry:
            given |= {"tls_ca_file", "tls_verify"}
        return cls(backend, ttl_s, frozenset(given))


def _taken(value: object, key: str, parse: Callable[[object], T], faults: list[str]) -> T | None:
    if value is None:
        return None
    try:
        return parse(value)
    except BadValueError:
        rule = f"a duration of {SHORTEST_TTL_S:g} to {LONGEST_TTL_S:g} seconds, such as 15 or 15s"
        faults.append(f"{key} = {value!r} must be {rule}")
        return None


def _sentence(problem: object) -> str:
    return str(problem).removeprefix("body: ").rstrip(".")
