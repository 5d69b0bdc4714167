"""One engine in virtual time: arrivals, steps, and the depth that admission looks at. Pure.

Virtual time is seconds of modelled hardware. It moves only while there is work: an idle engine's
clock stands still until the next arrival. `advance(until_s)` replays every step boundary up to a
moment, and admits at each boundary exactly what had arrived by then, so the run does not depend
on how often or how late it is called (I14, tests/sim/test_engine.py).
"""

from __future__ import annotations

from collections import deque
from math import inf

from lifeboat.sim.cost import CostModel
from lifeboat.sim.kv import BLOCK_TOKENS, BlockPool
from lifeboat.sim.scheduler import Phase, Plan, Scheduler, Sequence


class Engine:
    """A scheduler and a cost model on one virtual clock.

    max_waiting: bound of the line for `saturated`; 0 = unbounded.
    now_s: virtual time of the latest step boundary (or of the arrival that ended an idle spell).
    """

    def __init__(
        self,
        cost: CostModel,
        *,
        max_num_seqs: int = 256,
        max_waiting: int = 0,
        token_budget: int = 8192,
        kv_blocks: int | None = None,
    ) -> None:
        self.cost = cost
        blocks = cost.kv_blocks(BLOCK_TOKENS) if kv_blocks is None else kv_blocks
        self.scheduler = Scheduler(max_num_seqs, token_budget, BlockPool(blocks))
        self.max_waiting = max_waiting
        self.now_s = 0.0
        self.steps = 0
        self._arrivals: deque[Sequence] = deque()
        self._unstepped = 0
        self._plan: Plan = []
        self._ends_s = inf

    @property
    def running(self) -> list[Sequence]:
        """What holds a seat, in the order of admission."""
        return self.scheduler.running

    @property
    def depth(self) -> int:
        """The length of the line as admission sees it, and as it is reported.

        What is queued (preempted ones included) and what has arrived but met no step yet, less
        the seats that are free for them: a burst is neither admitted wholesale nor refused while
        there are seats.
        """
        scheduler = self.scheduler
        return max(scheduler.queued + self._unstepped - scheduler.free_seats, 0)

    @property
    def in_flight(self) -> int:
        """Everything submitted that has neither ended nor been withdrawn."""
        return len(self.running) + self.scheduler.queued + self._unstepped

    @property
    def saturated(self) -> bool:
        """The next arrival is to be refused."""
        return 0 < self.max_waiting <= self.depth

    @property
    def idle(self) -> bool:
        """No step is under way and nothing waits for one."""
        return self._ends_s == inf and not self._arrivals

    @property
    def step_ends_s(self) -> float:
        """Virtual time at which the step under way ends; infinite when there is none."""
        return self._ends_s

    @property
    def next_event_s(self) -> float:
        """A lower bound of when a sequence next emits its first token, finishes or is admitted.

        Until then only further tokens come, which may be written together. Steps do not get
        shorter while the batch stays the same, so the bound holds.
        """
        if self._ends_s == inf:
            return inf
        scheduler = self.scheduler
        if self._arrivals or (scheduler.queued and scheduler.free_seats):
            return self._ends_s
        more = scheduler.steps_to_next_event() - 1
        return self._ends_s + more * (self._ends_s - self.now_s)

    @property
    def cache_tokens(self) -> int:
        """Positions that the whole KV cache holds."""
        return self.scheduler.kv.total * BLOCK_TOKENS

    def fits(self, sequence: Sequence) -> bool:
        """Whether the cache could ever hold the sequence at its longest."""
        return sequence.most_blocks <= self.scheduler.kv.total

    def submit(self, sequence: Sequence, at_s: float) -> None:
        """Let a sequence arrive at virtual time `at_s`, which never goes back between calls."""
        sequence.arrived_s = at_s
        self._arrivals.append(sequence)
        self._unstepped += 1

    def withdraw(self, sequence: Sequence) -> None:
        """The client left: out of the line at once, out of its seat at the next step."""
        if sequence.ended:
            return
        if sequence.phase is Phase.ARRIVED:
            self._unstepped -= 1
        self.scheduler.withdraw(sequence)

    def advance(self, until_s: float, max_steps: int = 1 << 30) -> tuple[list[Sequence], bool]:
        """Run every boundary up to `until_s`, at most `max_steps` steps.

        Returns what finished, in order, and whether `max_steps` stopped it early.
        """
        finished: list[Sequence] = []
        for _ in range(max_steps):
            if self._ends_s == inf:
                if not self._arrivals or self._arrivals[0].arrived_s > until_s:
                    return finished, False
                self.now_s = max(self.now_s, self._arrivals[0].arrived_s)
            elif self._ends_s <= until_s:
                finished += self.end_step()
            else:
                return finished, False
            self.begin_step()
        return finished, self._ends_s <= until_s

    def end_step(self) -> list[Sequence]:
        """End the step under way, whatever the time; return what it finished.

        With `begin_step`, for a loop in virtual time whose arrivals depend on what just finished.
        """
        self.now_s = self._ends_s
        self._ends_s = inf
        self.steps += 1
        return self.scheduler.commit(self._plan, self.now_s)

    def begin_step(self) -> None:
        """Begin a step at `now_s` with what has arrived by then; without work there is none."""
        now_s = self.now_s
        scheduler = self.scheduler
        while self._arrivals and self._arrivals[0].arrived_s <= now_s:
            sequence = self._arrivals.popleft()
            if sequence.phase is Phase.ARRIVED:
                self._unstepped -= 1
                scheduler.add(sequence)
        self._plan = plan = scheduler.plan()
        if not plan:
            self._ends_s = inf
            return
        for sequence, _ in plan:
            if sequence.started_s < 0.0:
                sequence.started_s = now_s
        self._ends_s = now_s + self.cost.step_s([(new, s.resident) for s, new in plan])
