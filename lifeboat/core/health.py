"""The standing of a backend: what probes and the requests themselves say of it.

Busy is not down: a full engine, a slow probe beside live answers, and 4xx answers say nothing
against a backend. Facts act at once (a refused connection, "Loading model"); suspicion needs
repetition and never ejects the last live backend, which the gate decides. Held by
tests/core/test_health.py. Sources: the contract's section 5; BUG-171, 172, 174, 175, 180 of the
public cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lifeboat.core.vocabulary import Health, Outcome, Verdict

FAILURES_TO_SUSPECT = 3
"""Failures with no success between (contract, section 5)."""
FIRST_PAUSE_S = 1.0
"""Pause before a suspect's first trial; doubles with each failed one."""
LONGEST_PAUSE_S = 30.0

FAULTS = frozenset(
    {
        Verdict.SERVER_ERROR,
        Verdict.RESET,
        Verdict.UNREACHABLE,
        Verdict.FIRST_BYTE_TIMEOUT,
        Verdict.IDLE_TIMEOUT,
    }
)
"""Verdicts that count against health without being proof."""


class ProbeResult(StrEnum):
    """What one probe found."""

    OK = "ok"
    LOADING = "loading"
    REFUSED = "refused"
    FAILED = "failed"
    """Timed out, broke, or answered 5xx: suspicion, not proof."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One finding of a probe, with the reason in words where it is not OK."""

    result: ProbeResult
    detail: str | None = None


class Standing:
    """The health of one backend as a state machine over outcomes and probes.

    epoch grows when the backend shows itself good after a failure: a request that had excluded it
    may then use it again. turns: how often its health has changed; trouble: the reason of the last
    turn to the worse, kept when it is up again. Whoever looks now and then sees what it missed.
    """

    __slots__ = (
        "_doubted",
        "detail",
        "epoch",
        "failures",
        "health",
        "last_success_at",
        "pause_s",
        "probe_failures",
        "probe_threshold",
        "trial_at",
        "trouble",
        "turns",
    )

    def __init__(self, probe_threshold: int = 3) -> None:
        """Start live but unproven; `probe_threshold` failed probes in a row make it down."""
        self.health = Health.STARTING
        self.detail: str | None = None
        self.epoch = 0
        self.failures = 0
        self._doubted = False
        self.probe_failures = 0
        self.probe_threshold = probe_threshold
        self.pause_s = FIRST_PAUSE_S
        self.trial_at = 0.0
        self.last_success_at: float | None = None
        self.turns = 0
        self.trouble: str | None = None

    @property
    def live(self) -> bool:
        """Whether requests may be sent, room permitting."""
        return self.health is not Health.DOWN and self.health is not Health.LOADING

    def suspect_allowance(self, now: float) -> int | None:
        """Return how many requests a suspect may hold (0 in its pause, else 1), None if trusted."""
        if self.health is not Health.SUSPECT:
            return None
        return 1 if now >= self.trial_at else 0

    def observe_outcome(self, outcome: Outcome, now: float) -> bool:
        """Take in the end of a request; return whether anything changed for dispatch."""
        verdict = outcome.verdict
        if verdict is Verdict.ANSWERED:
            if outcome.status is not None and outcome.status < 400:
                return self._succeed(now)
            return False
        if verdict is Verdict.REFUSED:
            return self._turn(Health.DOWN, "connection refused")
        if verdict is Verdict.LOADING:
            return self._turn(Health.LOADING, "the server is loading its model")
        if verdict in FAULTS:
            return self._fail(outcome, now)
        return False

    def observe_progress(self, now: float) -> None:
        """Note that the backend sends bytes of an answer: it is alive, however slow its probes."""
        self.last_success_at = now

    def observe_probe(self, probe: Probe, now: float, *, may_eject: bool, quiet_s: float) -> bool:
        """Take in a probe; return whether anything changed for dispatch.

        may_eject: False where this is the last live backend of a pool. quiet_s: a backend that
        answered a request within this many seconds is not ejected by failed probes.
        """
        match probe.result:
            case ProbeResult.OK:
                self.probe_failures = 0
                if self.health is Health.SUSPECT:
                    # The probe's path may work while inference fails: only a request clears this.
                    return False
                recovered = self._doubted or not self.live
                if not self.live:
                    self.failures = 0
                # While it was live, only requests clear what requests counted: a health page may
                # be well while inference fails.
                changed = self._turn(Health.UP, None)
                if recovered:
                    self._doubted = False
                    self.epoch += 1
                return changed or recovered
            case ProbeResult.LOADING:
                self.probe_failures = 0
                return self._turn(Health.LOADING, probe.detail or "the server is loading its model")
            case ProbeResult.REFUSED:
                return self._turn(Health.DOWN, probe.detail or "connection refused")
            case ProbeResult.FAILED:
                self.probe_failures += 1
                busy = self.last_success_at is not None and now - self.last_success_at < quiet_s
                if self.probe_failures < self.probe_threshold or busy or not may_eject:
                    return False
                return self._turn(Health.DOWN, probe.detail or "probes fail")

    def _succeed(self, now: float) -> bool:
        failed = (
            self._doubted or self.failures > 0 or self.health not in (Health.STARTING, Health.UP)
        )
        recovered = failed or self.health is Health.STARTING
        self.last_success_at = now
        self.failures = 0
        self._doubted = False
        self.probe_failures = 0
        self.pause_s = FIRST_PAUSE_S
        if recovered:
            if failed:
                self.epoch += 1
            self._turn(Health.UP, None)
        return recovered

    def _fail(self, outcome: Outcome, now: float) -> bool:
        self.failures += 1
        self._doubted = True
        detail = describe(outcome)
        if self.health is Health.SUSPECT:
            if now < self.trial_at:
                # A request from before the pause; the trial has not been had yet.
                self.detail = detail
                return False
            self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        elif self.failures < FAILURES_TO_SUSPECT or not self.live:
            return False
        self._turn(Health.SUSPECT, f"{self.failures} failures in a row, the last: {detail}")
        self.trial_at = now + self.pause_s
        return True

    def _turn(self, health: Health, detail: str | None) -> bool:
        changed = self.health is not health
        self.health = health
        self.detail = detail
        if changed:
            self.turns += 1
            self.trouble = detail or self.trouble
        return changed


def describe(outcome: Outcome) -> str:
    """Return an outcome in a few words, for `health_detail` and lists of attempts."""
    words = outcome.verdict.value.replace("_", " ")
    return words if outcome.status is None else f"{words} (status {outcome.status})"
