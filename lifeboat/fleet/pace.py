"""When a backend is looked at again: a pure function of how it stands.

Held by tests/fleet/test_pure_parts.py. Source: the contract's section 5 (a backend that is down is
probed every second while anything waits for or arrives at its pools, else backing off to 30 s).
"""

from __future__ import annotations

from dataclasses import dataclass

from lifeboat.core.vocabulary import Health


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses in seconds.

    soonest_s: between two probes of a backend that is wanted, or that loads its model: below the
        second within which it is to serve again, by what a probe and its list take.
    longest_s: between two probes of one that is down and wanted by nobody.
    first_s: how long start-up waits for the first answers of all backends together.
    jitter: the part by which a pause is shortened at most, so that probes do not march in step.
    """

    soonest_s: float = 0.9
    longest_s: float = 30.0
    first_s: float = 1.0
    jitter: float = 0.1

    def pause_s(
        self,
        health: Health,
        interval_s: float,
        vain_rounds: int,
        *,
        wanted: bool,
        listed: bool,
        chance: float,
    ) -> float:
        """Return the pause after a probe.

        vain_rounds: probes in a row that left it down and wanted by nobody, or without a list.
        listed: its models are known; until then it is asked sooner. chance: in [0, 1).
        """
        doublings = min(max(vain_rounds - 1, 0), 16)
        growing_s = min(self.soonest_s * 2**doublings, self.longest_s)
        match health:
            case Health.LOADING:
                pause_s = self.soonest_s
            case Health.DOWN if wanted:
                pause_s = self.soonest_s
            case Health.DOWN:
                pause_s = growing_s
            case Health.STARTING | Health.UP | Health.SUSPECT:
                pause_s = interval_s if listed else min(growing_s, interval_s)
        return pause_s * (1.0 - self.jitter * chance)
