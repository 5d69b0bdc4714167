"""What one step holds: continuous batching with chunked prefill, KV blocks and preemption. Pure.

Laws (tests/sim/test_scheduler.py): never more than `max_num_seqs` running, except what ran when
the cap was lowered; never more new positions in a step than the token budget; blocks held by
sequences + free blocks = all blocks; first come, first served, a preempted sequence before all
that never ran; a token that was emitted stays emitted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import Enum, auto
from math import inf

from lifeboat.sim.kv import BLOCK_TOKENS, BlockPool, blocks_for


class Phase(Enum):
    """Where a sequence is."""

    ARRIVED = auto()
    """Submitted, and not yet seen by a step."""
    WAITING = auto()
    """In line: never run, or preempted."""
    RUNNING = auto()
    FINISHED = auto()
    GONE = auto()
    """Its client left."""


class Sequence:
    """One sequence: a prompt and the output tokens that it gets.

    prompt_tokens: positions of the prompt, at least 1.
    max_tokens: output tokens after which it is finished; 0 = prefill alone (an embedding).
    emitted: output tokens so far. resident: positions whose KV is in the cache.
    arrived_s, started_s, first_token_s, finished_s: virtual time; -1 until it happened.
    """

    __slots__ = (
        "arrived_s",
        "blocks",
        "emitted",
        "finished_s",
        "first_token_s",
        "max_tokens",
        "phase",
        "preemptions",
        "prompt_tokens",
        "resident",
        "started_s",
    )

    def __init__(self, prompt_tokens: int, max_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.emitted = 0
        self.resident = 0
        self.blocks = 0
        self.preemptions = 0
        self.phase = Phase.ARRIVED
        self.arrived_s = -1.0
        self.started_s = -1.0
        self.first_token_s = -1.0
        self.finished_s = -1.0

    @property
    def ended(self) -> bool:
        """No more tokens will come."""
        return self.phase is Phase.FINISHED or self.phase is Phase.GONE

    @property
    def most_blocks(self) -> int:
        """Blocks it takes at its longest; its last token is never read back."""
        return blocks_for(self.prompt_tokens + max(self.max_tokens - 1, 0))


Plan = list[tuple[Sequence, int]]
"""A step: each sequence with the new positions it computes."""


class Scheduler:
    """The line, the running batch and the cache of one engine."""

    def __init__(self, max_num_seqs: int, token_budget: int, kv: BlockPool) -> None:
        self.max_num_seqs = max_num_seqs
        self.token_budget = token_budget
        self.kv = kv
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.emitted_tokens = 0
        self.prompt_tokens = 0
        """Prompt tokens of the sequences whose first prefill is complete."""
        self.short_of_kv = False
        """The last plan left a sequence in line, or put one back, for want of KV blocks."""
        self._line: OrderedDict[int, Sequence] = OrderedDict()
        self._some_are_gone = False

    @property
    def queued(self) -> int:
        """Sequences in line, the preempted ones included."""
        return len(self._line)

    @property
    def free_seats(self) -> int:
        """Seats that the next plan could fill; none while the cache is what is short."""
        return 0 if self.short_of_kv else max(self.max_num_seqs - len(self.running), 0)

    def waiting(self) -> Iterator[Sequence]:
        """Yield what is in line, next one first."""
        yield from self._line.values()

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the line."""
        sequence.phase = Phase.WAITING
        self._line[id(sequence)] = sequence

    def withdraw(self, sequence: Sequence) -> None:
        """Forget a sequence whose client left; a running one leaves at the next plan."""
        self._line.pop(id(sequence), None)
        self._some_are_gone |= sequence.phase is Phase.RUNNING
        sequence.phase = Phase.GONE

    def plan(self) -> Plan:
        """Decide the next step; empty when there is nothing to do.

        Running sequences go first, in the order of their admission; then the line, while seats,
        token budget and blocks suffice. After a preemption nobody is admitted in the same step:
        the one at the front needs all the blocks it gave up, and some of them are taken.
        """
        if self._some_are_gone:
            self._drop_the_gone()
        self.short_of_kv = False
        plan, budget = self._plan_running()
        self._admit(plan, budget)
        return plan

    def commit(self, plan: Plan, now_s: float) -> list[Sequence]:
        """Apply a step that ended at `now_s`; return the sequences that it finished."""
        finished: list[Sequence] = []
        emitted = 0
        for sequence, new in plan:
            sequence.resident += new
            if sequence.resident < sequence.prompt_tokens + sequence.emitted:
                continue
            if sequence.max_tokens:
                sequence.emitted += 1
                emitted += 1
            if sequence.first_token_s < 0.0:
                sequence.first_token_s = now_s
                self.prompt_tokens += sequence.prompt_tokens
            if sequence.emitted >= sequence.max_tokens and sequence.phase is Phase.RUNNING:
                finished.append(sequence)
        self.emitted_tokens += emitted
        if finished:
            for sequence in finished:
                sequence.phase = Phase.FINISHED
                sequence.finished_s = now_s
                self._free(sequence)
            self.running = [s for s in self.running if s.phase is not Phase.FINISHED]
        return finished

    def steps_to_next_event(self) -> int:
        """Return a lower bound of steps until a sequence emits its first token or finishes."""
        fewest = inf
        for sequence in self.running:
            if not sequence.emitted:
                return 1
            left = sequence.max_tokens - sequence.emitted
            if left < fewest:
                fewest = left
        return 1 if fewest == inf else max(int(fewest), 1)

    def _drop_the_gone(self) -> None:
        for sequence in self.running:
            if sequence.phase is Phase.GONE:
                self._free(sequence)
        self.running = [s for s in self.running if s.phase is not Phase.GONE]
        self._some_are_gone = False

    def _plan_running(self) -> tuple[Plan, int]:
        plan: Plan = []
        budget = self.token_budget
        at = 0
        while at < len(self.running) and budget:
            sequence = self.running[at]
            new = min(sequence.prompt_tokens + sequence.emitted - sequence.resident, budget)
            positions = sequence.resident + new
            if positions > sequence.blocks * BLOCK_TOKENS and not self._make_room(
                sequence, blocks_for(positions) - sequence.blocks
            ):
                break
            plan.append((sequence, new))
            budget -= new
            at += 1
        return plan, budget

    def _make_room(self, sequence: Sequence, blocks: int) -> bool:
        """Take `blocks` for a running sequence; False when it had to go back in line itself."""
        while not self.kv.take(blocks):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.blocks += blocks
        return True

    def _preempt(self, victim: Sequence) -> None:
        """The last admitted loses its KV, keeps its tokens and goes to the front of the line."""
        self.short_of_kv = True
        self.preemptions += 1
        victim.preemptions += 1
        victim.resident = 0
        victim.phase = Phase.WAITING
        self._free(victim)
        self._line[id(victim)] = victim
        self._line.move_to_end(id(victim), last=False)

    def _admit(self, plan: Plan, budget: int) -> None:
        while self._line and budget and len(self.running) < self.max_num_seqs:
            key, sequence = next(iter(self._line.items()))
            known = sequence.prompt_tokens + sequence.emitted
            blocks = blocks_for(known)
            # The whole prompt must fit, though it may be computed in chunks: a sequence that was
            # let in halfway would only be preempted again.
            if not self.kv.take(blocks):
                self.short_of_kv = True
                return
            del self._line[key]
            sequence.blocks = blocks
            sequence.phase = Phase.RUNNING
            self.running.append(sequence)
            new = min(known, budget)
            plan.append((sequence, new))
            budget -= new

    def _free(self, sequence: Sequence) -> None:
        self.kv.give(sequence.blocks)
        sequence.blocks = 0
