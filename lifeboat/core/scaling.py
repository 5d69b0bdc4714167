"""How many replicas a pool should have: a pure function of what was seen of its demand.

The rule, with its sources: scale to `demand / (target x slots)`, but only to what the demand has
asked for through a whole window (the stabilisation windows of Kubernetes' horizontal autoscaler):
up after `sustain_s`, down after `scale_down_delay_s`. A burst far beyond what is there goes up
sooner (the panic window of Knative's autoscaler), and a first request wakes a pool of none at
once. The Parasail seed is the table of tests/core/test_scaling.py: 64 x 4 = 256 slots, 512 after
five minutes of sustained traffic and about five of start-up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lifeboat.core.capacity import TARGET_UTILIZATION, FullScale, backends_for

PANIC_PART = 0.1
"""A burst is one once it has lasted this part of `sustain_s`."""

SAMPLES_KEPT = 512
"""Into so many pieces the longest window is cut, which makes it exact to half a percent. At the
most twice as many samples are kept."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The settings of one pool's controller.

    least, most: replicas; a least of 0 lets the pool go to sleep. target: utilization of the slots.
    sustain_s: how long a demand must last before replicas are added for it. startup_s: how long a
    replica takes to serve. scale_down_delay_s: how long one must have been superfluous.
    panic_factor: demand over this many times the present slots is a burst; 0 = no panic.
    """

    least: int = 1
    most: int = 1
    target: float = TARGET_UTILIZATION
    sustain_s: float = 300.0
    startup_s: float = 300.0
    scale_down_delay_s: float = 600.0
    panic_factor: float = 2.0

    @property
    def longest_window_s(self) -> float:
        """How far back the controller looks."""
        return max(self.sustain_s, self.scale_down_delay_s)


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one moment.

    demand: slots wanted (core.capacity). slots: of one replica. fixed_slots: of backends of the
    pool that are not scaled, which take their part first.
    """

    at: float
    demand: float
    slots: float
    fixed_slots: float = 0.0


class ScalingReason(StrEnum):
    """Why the controller says what it says."""

    STEADY = "steady"
    SUSTAINED = "sustained"
    PANIC = "panic"
    WAKE = "wake"
    SUPERFLUOUS = "superfluous"
    BOUNDS = "bounds"


@dataclass(frozen=True, slots=True)
class Decision:
    """Replicas wanted, those that start included. raw: what this moment's demand alone asks for."""

    desired: int
    raw: int
    reason: ScalingReason


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """One scaled pool, to be shown. wanted: replicas, those that start included.

    fixed: backends of the pool that are not scaled. raw: what this moment's demand asks for.
    reason: of the last change. failure: why the last call failed, None after a good one.
    """

    actuator: str
    least: int
    most: int
    target: float
    fixed: int
    wanted: int
    raw: int
    reason: ScalingReason
    failure: str | None

    @property
    def scale(self) -> FullScale:
        """What may become of the pool."""
        return FullScale(self.fixed + self.most, self.target)


def decide(policy: ScalingPolicy, samples: Sequence[Sample], current: int) -> Decision:
    """Return the replicas wanted.

    samples: oldest first, the last one is now. current: replicas that run or start already.
    """
    newest = samples[-1]
    raw = replicas_for(policy, newest)
    bounded = _bounded(policy, current)
    if bounded != current:
        return Decision(bounded, raw, ScalingReason.BOUNDS)
    if current == 0 and raw > 0:
        return Decision(raw, raw, ScalingReason.WAKE)
    sustained = _wanted_through(policy, samples, policy.sustain_s)
    if sustained is not None and min(sustained) > current:
        return Decision(min(sustained), raw, ScalingReason.SUSTAINED)
    burst = _burst(policy, samples, current)
    if burst > current:
        return Decision(burst, raw, ScalingReason.PANIC)
    superfluous = _wanted_through(policy, samples, policy.scale_down_delay_s)
    if superfluous is not None and max(superfluous) < current:
        return Decision(max(superfluous), raw, ScalingReason.SUPERFLUOUS)
    return Decision(current, raw, ScalingReason.STEADY)


def replicas_for(policy: ScalingPolicy, sample: Sample) -> int:
    """Return the replicas that a sample's demand asks for, within the bounds."""
    left = sample.demand - policy.target * sample.fixed_slots
    return _bounded(policy, backends_for(max(0.0, left), sample.slots, policy.target))


def _bounded(policy: ScalingPolicy, replicas: int) -> int:
    return min(max(replicas, policy.least), policy.most)


def _wanted_through(
    policy: ScalingPolicy, samples: Sequence[Sample], window_s: float
) -> list[int] | None:
    """Return what each sample of a window asks for; None while they do not reach back so far."""
    since = samples[-1].at - window_s
    if samples[0].at > since:
        return None
    return [replicas_for(policy, sample) for sample in samples if sample.at >= since]


def _burst(policy: ScalingPolicy, samples: Sequence[Sample], current: int) -> int:
    """Return what a burst asks for that has lasted long enough to be one; 0 without one."""
    newest = samples[-1]
    there = current * newest.slots + newest.fixed_slots
    if policy.panic_factor <= 0.0 or newest.demand <= policy.panic_factor * there:
        return 0
    wanted = _wanted_through(policy, samples, PANIC_PART * policy.sustain_s)
    if wanted is None:
        return 0
    # All of it must have been beyond the factor: one wild sample is no burst.
    since = newest.at - PANIC_PART * policy.sustain_s
    lasting = all(
        sample.demand > policy.panic_factor * there for sample in samples if sample.at >= since
    )
    return min(wanted) if lasting else 0


class SampleRecord:
    """The samples that a policy looks at: bounded whatever the length of its windows."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._keep_s = policy.longest_window_s
        self._step_s = self._keep_s / (SAMPLES_KEPT)
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> Sequence[Sample]:
        """Take in a sample and return all that matter, oldest first.

        Of those closer together than a step the last one stands for all; one older than the
        window is kept, so that it is known to be covered.
        """
        samples = self._samples
        if len(samples) >= 2 and sample.at - samples[-2].at < self._step_s:
            samples.pop()
        samples.append(sample)
        while len(samples) > 2 and samples[1].at <= sample.at - self._keep_s:
            samples.popleft()
        return samples
