"""The backends inside the gate: membership, limits and standing, without any request.

Everything here changes what backends may hold; the gate then pumps. What still runs on a server
for a backend that takes nothing new there (it left, moved on, or was drained) leaves that much less
room to the others of the same server, so that a rename never doubles a cap (`lingering`: how many
by server). Held by tests/core/test_seats.py, test_gate_machine.py and test_one_server.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from lifeboat.core.fit import Directory
from lifeboat.core.health import Probe
from lifeboat.core.limits import LimitRules
from lifeboat.core.seat import Lease, Seat
from lifeboat.core.vocabulary import BackendSpec, OperatorState, Outcome, Verdict

RETIRED_FOR_S = 3600.0
"""How long a removed backend's counters wait for its return (contract, section 9: an hour)."""
LONGEST_THROTTLE_S = 300.0
"""A 429's Retry-After closes a backend for at most this long (contract, section 5)."""

FAILED = frozenset(
    {
        Verdict.SERVER_ERROR,
        Verdict.REFUSED,
        Verdict.UNREACHABLE,
        Verdict.RESET,
        Verdict.FIRST_BYTE_TIMEOUT,
        Verdict.IDLE_TIMEOUT,
    }
)
"""Verdicts counted as a backend's `failed`."""


class UnknownBackendError(LookupError):
    """A name that no configured backend has."""


class Seats:
    """All seats by name, the directory over them, and those removed of late."""

    def __init__(self, limit_rules: LimitRules, probe_threshold: int = 3) -> None:
        self.by_name: dict[str, Seat] = {}
        self.retired: dict[str, Seat] = {}
        self.directory = Directory()
        self.timed: set[Seat] = set()
        self.lingering: dict[str, int] = {}
        self._limit_rules = limit_rules
        self._probe_threshold = probe_threshold
        self._named_models: frozenset[str] = frozenset()
        self._of_key: dict[frozenset[str], tuple[Seat, ...]] = {}
        self._ordinal = -1_000_000_000

    def __getitem__(self, name: str) -> Seat:
        """Return the seat of a configured backend; UnknownBackendError names the known ones."""
        seat = self.by_name.get(name)
        if seat is None or seat.leaving:
            known = ", ".join(name for name, seat in self.by_name.items() if not seat.leaving)
            raise UnknownBackendError(f"no backend is named {name!r}; known: {known or 'none'}")
        return seat

    def of(self, key: frozenset[str]) -> tuple[Seat, ...]:
        """Return the seats of a lane key, in the order they were added."""
        seats = self._of_key.get(key)
        if seats is None:
            seats = tuple(seat for name, seat in self.by_name.items() if name in key)
            self._of_key[key] = seats
        return seats

    def members_in_service(self, model: str) -> bool:
        """Return whether any backend of a model is in service."""
        return any(
            self.by_name[spec.name].in_service for spec in self.directory.members.get(model, ())
        )

    def put(self, spec: BackendSpec, now: float, *, new_server: bool = False) -> None:
        """Add a backend, or take a changed description of one; one removed of late comes back.

        new_server: it is another server under the old name: neither health nor the counters of one
        that has left are its own.
        """
        if new_server:
            self.retired.pop(spec.name, None)
        seat = self.by_name.get(spec.name) or self.retired.pop(spec.name, None)
        if seat is None:
            seat = Seat(spec, self._probe_threshold)
            self._ordinal += 1
            seat.last_pick = self._ordinal
        elif seat.leaving:
            seat.rejoin()
        elif new_server:
            seat.forget_server()
        seat.respec(spec)
        self.by_name[spec.name] = seat
        self.rebuild(now)

    def remove(self, name: str, now: float) -> None:
        """Take a backend out of the directory; it stays in sight until its leases end."""
        self[name].leaving = True
        self.rebuild(now)
        self.retire_if_empty(self.by_name[name], now)

    def retire_if_empty(self, seat: Seat, now: float) -> None:
        """Drop a removed backend whose last lease has ended; keep its counters for a while."""
        name = seat.spec.name
        # A lease that holds no slot may outlast the seat's stay.
        if seat.leaving and seat.in_flight == 0 and self.by_name.get(name) is seat:
            del self.by_name[name]
            self.timed.discard(seat)
            seat.lanes.clear()
            seat.excluded_by.clear()
            seat.removed_at = now
            self.retired[name] = seat
            for retired, old in list(self.retired.items()):
                if now - old.removed_at > RETIRED_FOR_S:
                    del self.retired[retired]

    def name_models(self, names: frozenset[str], now: float) -> bool:
        """Set the model names that are known without a backend; return whether they changed."""
        if names == self._named_models:
            return False
        self._named_models = names
        self.rebuild(now)
        return True

    def rebuild(self, now: float) -> None:
        """Rebuild the directory after a change of membership, and all limits with it."""
        present = [seat.spec for seat in self.by_name.values() if not seat.leaving]
        self.directory = Directory(present, self._named_models)
        self._of_key.clear()
        self.refresh_all(now)

    def set_rules(self, limit_rules: LimitRules, now: float) -> None:
        """Take changed settings."""
        self._limit_rules = limit_rules
        self.refresh_all(now)

    def refresh_all(self, now: float) -> None:
        """Recompute every limit: one backend's health decides whether another is the last."""
        self.lingering.clear()
        for seat in self.by_name.values():
            for server, held in seat.lingering():
                if held:
                    self.lingering[server] = self.lingering.get(server, 0) + held
        for seat in self.by_name.values():
            self.refresh(seat, now)

    def outlived(self, lease: Lease, now: float) -> list[Seat]:
        """Take in the end of a lease while some linger; return those who now have more room.

        The slot of the lease must be given back already.
        """
        seat, stay = lease.seat, lease.stay
        if stay is not seat.stay:
            stay.left -= 1
            if not stay.left:
                seat.past.remove(stay)
        elif seat.shown_state is OperatorState.READY:
            return []
        server = stay.server
        left = self.lingering.pop(server) - 1
        if left:
            self.lingering[server] = left
        heirs = [other for other in self.by_name.values() if other.spec.server == server]
        for heir in heirs:
            self.refresh(heir, now)
        return heirs

    def refresh(self, seat: Seat, now: float) -> None:
        """Recompute one limit, and note whether time alone will change it."""
        last_live = seat.is_suspect and not self.may_eject(seat)
        server = seat.spec.server
        lingering = self.lingering.get(server, 0) if server else 0
        seat.refresh(self._limit_rules, now, last_live=last_live, lingering=lingering)
        if seat.next_event_at(now) is None:
            self.timed.discard(seat)
        else:
            self.timed.add(seat)

    def may_eject(self, seat: Seat) -> bool:
        """Return whether each pool of a backend has another member in service and trusted."""
        models = seat.spec.models or ()
        return bool(models) and all(self._has_other(model, seat) for model in models)

    def _has_other(self, model: str, seat: Seat) -> bool:
        for spec in self.directory.members.get(model, ()):
            other = self.by_name[spec.name]
            if other is not seat and other.in_service and not other.is_suspect:
                return True
        return False

    def observe_probe(self, name: str, probe: Probe, quiet_s: float, now: float) -> None:
        """Take in a probe's finding; unknown names are ignored: probes may outlive backends."""
        seat = self.by_name.get(name)
        if seat is None:
            return
        if seat.standing.observe_probe(probe, now, may_eject=self.may_eject(seat), quiet_s=quiet_s):
            self.refresh_all(now)

    def learn(self, lease: Lease, outcome: Outcome, now: float) -> bool:
        """Take in how a request ended: counters, saturation, throttling, standing.

        Returns whether a turn of its health may have changed other backends' limits too.
        """
        seat = lease.seat
        verdict = outcome.verdict
        if verdict in FAILED:
            seat.failed += 1
        elif verdict is Verdict.CLIENT_GONE and lease.dispatched:
            seat.cancelled += 1
        if seat.adaptive is not None and lease.holds_slot:
            self._adapt(seat, lease, outcome, now)
        if verdict is Verdict.SATURATED:
            seat.saturation.refuse(seat.in_flight, lease.granted_at, outcome.retry_after_s, now)
            self.refresh(seat, now)
            return False
        if verdict is Verdict.THROTTLED:
            pause_s = min(outcome.retry_after_s or 0.0, LONGEST_THROTTLE_S)
            seat.throttled_until = max(seat.throttled_until, now + pause_s)
            self.refresh(seat, now)
            return False
        if verdict is Verdict.ANSWERED and lease.holds_slot:
            seat.saturation.served(lease.level)
        turned = seat.standing.observe_outcome(outcome, now)
        if turned:
            self.refresh_all(now)
        return turned

    def _adapt(self, seat: Seat, lease: Lease, outcome: Outcome, now: float) -> None:
        """Let a backend that learns its limit see how a request ended."""
        assert seat.adaptive is not None
        if seat.adaptive.observe(
            outcome,
            granted_at=lease.granted_at,
            in_flight=seat.in_flight,
            tokens=lease.ask.estimate.tokens,
            now=now,
        ):
            self.refresh(seat, now)

    def take_due(self, now: float) -> list[Seat]:
        """Apply what the clock alone changes; return the backends it changed."""
        due = [
            seat
            for seat in self.timed
            if (event_at := seat.next_event_at(now)) is None or event_at <= now
        ]
        for seat in due:
            seat.saturation.rise(seat.risen_at, now)
            self.refresh(seat, now)
        return due

    def next_event_at(self, now: float) -> float | None:
        """Return when the clock alone will change a limit; None when it will not."""
        times: Iterable[float | None] = (seat.next_event_at(now) for seat in self.timed)
        return min((at for at in times if at is not None), default=None)
