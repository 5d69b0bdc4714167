"""What the scripts are made of that tests/conformance/test_lanes_agree.py plays on both lanes.

A script is how one router is set up, what its clients do on which connection, and how the engines
behind it meet each request: all decided beforehand, in bytes. Times are left to the player, but for
`Pause`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class After(StrEnum):
    """What an engine does with the connection once it has said all."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"
    """It says no more and waits until the router leaves."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """How an engine meets one attempt: pieces, each in a write of its own.

    held_before: index of the piece that waits until the script says `Release`, None = none does.
    is_early: it answers at the head of the request, and reads the body afterwards.
    """

    pieces: tuple[bytes, ...]
    held_before: int | None = None
    after: After = After.KEEP
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """A connection sends a request, behind whatever is still unanswered on it.

    pieces: each in a write of its own. method: an answer to HEAD has no body; "" when the request
    is not sent to its end, ever. meetings: one for each attempt, the last for all that follow.
    """

    at: int
    tag: int
    method: str
    pieces: tuple[bytes, ...]
    meetings: tuple[Meeting, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """The engines go on with what they hold for a request."""

    tag: int


class Doing(StrEnum):
    """What a client does with its connection, whatever is under way on it."""

    CLOSE = "close"
    RESET = "reset"
    HALF_CLOSE = "half-close"
    STOP_READING = "stop reading"
    READ_ON = "read on"


@dataclass(frozen=True, slots=True)
class Do:
    """A client does something other than sending."""

    at: int
    what: Doing


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing happens for a while."""

    seconds: float


Action = Send | Release | Do | Pause


@dataclass(frozen=True, slots=True)
class Setup:
    """Of the router. engines: behind the one pool, all of one kind."""

    engines: int = 1
    kind: str = "openai"
    max_concurrency: int = 1
    queue: bool = False
    max_depth: int | None = None
    max_input_tokens: int = 0
    keys: bool = False
    cors: bool = False
    early_refusal: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """What one router meets, in order."""

    setup: Setup
    actions: tuple[Action, ...]


def cut_at(wire: bytes, places: list[int]) -> tuple[bytes, ...]:
    """Cut bytes into pieces."""
    edges = [0, *sorted({place for place in places if 0 < place < len(wire)}), len(wire)]
    return tuple(wire[start:end] for start, end in pairwise(edges))
