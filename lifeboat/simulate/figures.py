"""What a simulated run measured: waits, refusals by reason, utilization, goodput, and its course.

Held by tests/simulate/test_pieces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from lifeboat.simulate.world import Trip, World

SAMPLES = 240
"""Points of the course: enough for a chart."""


@dataclass(frozen=True, slots=True)
class Point:
    """The world at one moment. limit: sum of effective limits, None with an ungated backend."""

    at_s: float
    in_flight: int
    limit: int | None
    parked: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds; zeros where there was nothing."""

    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0
    p99_s: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the mean and the percentiles by nearest rank."""
        if not values:
            return cls()
        ordered = sorted(values)

        def rank(share: float) -> float:
            return ordered[max(ceil(share * len(ordered)) - 1, 0)]

        return cls(sum(ordered) / len(ordered), rank(0.50), rank(0.95), rank(0.99))


@dataclass(frozen=True, slots=True)
class Figures:
    """One run.

    refused: by reason, or by the engine's status that was relayed; only what happened.
    wait: over all requests that were answered, 0 for those that never parked. first_token, took: of
    the answered, from their arrival. good: answered with the first token within `objective_s`.
    utilization: mean in-flight over the mean limit, None without a gate. seats: mean share of the
    engines' seats in use at the points of the course. engine_refusals: 529s that the router met,
    most of which the clients never saw. lasted_s: from the first arrival to the last end.
    """

    name: str
    requests: int
    answered: int
    refused: dict[str, int]
    wait: Spread
    parked: int
    first_token: Spread
    took: Spread
    objective_s: float
    good: int
    lasted_s: float
    output_tokens: int
    utilization: float | None
    seats: float
    engine_refusals: int
    by_backend: dict[str, int]
    course: list[Point] = field(repr=False)

    @property
    def answered_per_s(self) -> float:
        """Throughput in requests."""
        return self.answered / self.lasted_s if self.lasted_s > 0.0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Throughput in output tokens."""
        return self.output_tokens / self.lasted_s if self.lasted_s > 0.0 else 0.0

    @property
    def goodput_per_s(self) -> float:
        """Requests per second whose first token came in time."""
        return self.good / self.lasted_s if self.lasted_s > 0.0 else 0.0

    @property
    def refusals(self) -> int:
        """All that were not answered."""
        return sum(self.refused.values())

    def as_json(self) -> dict[str, Any]:
        """Return it for `--json`; seconds are `_sec`, as in the state."""

        def spread(name: str, of: Spread) -> dict[str, float]:
            return {
                f"{name}_{key}_sec": round(value, 6)
                for key, value in (
                    ("mean", of.mean_s), ("p50", of.p50_s), ("p95", of.p95_s), ("p99", of.p99_s),
                )
            }  # fmt: skip

        return {
            "name": self.name,
            "requests": self.requests,
            "answered": self.answered,
            "refused": self.refused,
            "parked": self.parked,
            **spread("wait", self.wait),
            **spread("first_token", self.first_token),
            **spread("took", self.took),
            "objective_sec": self.objective_s,
            "good": self.good,
            "goodput_per_sec": round(self.goodput_per_s, 6),
            "answered_per_sec": round(self.answered_per_s, 6),
            "output_tokens_per_sec": round(self.tokens_per_s, 3),
            "lasted_sec": round(self.lasted_s, 6),
            "utilization": None if self.utilization is None else round(self.utilization, 6),
            "seats": round(self.seats, 6),
            "engine_refusals": self.engine_refusals,
            "by_backend": self.by_backend,
        }


class Collector:
    """Gathers the ends of requests and the course of a world. every_s: between two points."""

    def __init__(self, every_s: float, objective_s: float) -> None:
        self._every_s = max(every_s, 1e-3)
        self._objective_s = objective_s
        self._trips: list[Trip] = []
        self._course: list[Point] = []
        self._ended_s = 0.0

    def ended(self, trip: Trip) -> None:
        """Take in a request that is over."""
        self._trips.append(trip)
        self._ended_s = max(self._ended_s, trip.asked_at_s + trip.took_s)

    def watch(self, world: World, until_s: float) -> None:
        """Look at the world every so often up to a moment."""

        def look() -> None:
            self._course.append(_point(world))
            if world.now_s + self._every_s <= until_s:
                world.at(world.now_s + self._every_s, look)

        world.at(0.0, look)

    def figures(self, name: str, world: World) -> Figures:
        """Return what was gathered."""
        refused: dict[str, int] = {}
        by_backend = dict.fromkeys(world.machines, 0)
        answered: list[Trip] = []
        for trip in self._trips:
            if trip.ended:
                refused[trip.ended] = refused.get(trip.ended, 0) + 1
            else:
                answered.append(trip)
                if trip.backend is not None:
                    by_backend[trip.backend] += 1
        limits = [point.limit for point in self._course]
        gated = [limit for limit in limits if limit is not None]
        # By Little's law, which sees also what came and went between two points.
        held_s = sum(trip.took_s - trip.wait_s for trip in self._trips)
        capacity_s = sum(gated) / len(gated) * self._ended_s if gated else 0.0
        seats = sum(machine.seats for machine in world.machines.values()) or 1
        looks = len(self._course) or 1
        return Figures(
            name=name,
            requests=len(self._trips),
            answered=len(answered),
            refused=dict(sorted(refused.items())),
            wait=Spread.of([trip.wait_s for trip in answered]),
            parked=sum(trip.wait_s > 0.0 for trip in self._trips),
            first_token=Spread.of([trip.first_token_s for trip in answered]),
            took=Spread.of([trip.took_s for trip in answered]),
            objective_s=self._objective_s,
            good=sum(trip.first_token_s <= self._objective_s for trip in answered),
            lasted_s=self._ended_s,
            output_tokens=sum(trip.arrival.output_tokens for trip in answered),
            utilization=held_s / capacity_s if capacity_s > 0.0 else None,
            seats=sum(point.running for point in self._course) / looks / seats,
            engine_refusals=sum(machine.refused for machine in world.machines.values()),
            by_backend=by_backend,
            course=self._course,
        )


def _point(world: World) -> Point:
    limits: list[int] = []
    ungated = False
    in_flight = 0
    for seat in world.gate.seats.by_name.values():
        in_flight += seat.in_flight
        if seat.limit is None:
            ungated = True
        else:
            limits.append(seat.limit)
    machines = world.machines.values()
    return Point(
        world.now_s,
        in_flight,
        None if ungated else sum(limits),
        world.gate.parked.count,
        sum(machine.running for machine in machines),
        sum(machine.waiting for machine in machines),
    )
