"""The engines of a simulated world: what stands behind each backend's name, and when it steps."""

from __future__ import annotations

from math import inf

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence


class Machine:
    """One simulated backend: its replicas as one, on the world's clock.

    World seconds are engine seconds x time_scale, as over sockets. step_at_s is the world's time at
    which a replica's step ends.
    """

    def __init__(self, name: str, config: EngineConfig) -> None:
        self.name = name
        self.config = config
        self.context_tokens = config.context_tokens
        self.refused = 0
        self._scale = config.time_scale
        self.engines = config.engines()

    @property
    def seats(self) -> int:
        """Sequences that can run at once."""
        return sum(engine.scheduler.max_num_seqs for engine in self.engines)

    @property
    def running(self) -> int:
        """Sequences that hold a seat."""
        return sum(len(engine.running) for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Sequences in line inside the engines."""
        return sum(engine.depth for engine in self.engines)

    def retune(self, max_num_seqs: int, max_waiting: int | None = None) -> None:
        """Change the seats of every replica, as `POST /control/capacity` does."""
        for engine in self.engines:
            engine.scheduler.max_num_seqs = max_num_seqs
            if max_waiting is not None:
                engine.max_waiting = max_waiting

    def sequence(self, input_tokens: int, output_tokens: int) -> Sequence | None:
        """Return a request's sequence; None when the engine answers 400: it is too long for it."""
        wanted = self.config.answer_tokens or output_tokens
        sequence = Sequence(input_tokens, min(output_tokens, wanted))
        if input_tokens + output_tokens > self.context_tokens:
            return None
        return sequence if self.engines[0].fits(sequence) else None

    def submit(self, sequence: Sequence, now_s: float) -> Engine | None:
        """Let a sequence arrive at the emptiest replica; None = refused, its line is full.

        The engine returned has begun a step if it was idle.
        """
        engine = min(self.engines, key=lambda one: one.in_flight)
        bound = self.config.max_num_queued_reqs
        if engine.saturated or (bound and engine.in_flight >= bound):
            self.refused += 1
            return None
        idle = engine.idle
        engine.submit(sequence, now_s / self._scale)
        if idle:
            self._wake(engine)
        return engine

    def step(self, engine: Engine) -> list[Sequence]:
        """End the step under way and begin the next; return what it finished."""
        finished = engine.end_step()
        engine.begin_step()
        if engine.step_ends_s == inf and not engine.idle:
            # An arrival that rounding put a hair after the boundary.
            self._wake(engine)
        return finished

    def step_at_s(self, engine: Engine) -> float:
        """Return when the step under way ends; infinite when there is none."""
        return engine.step_ends_s * self._scale

    def first_token_at_s(self, sequence: Sequence) -> float:
        """Return when a sequence emitted its first token."""
        return sequence.first_token_s * self._scale

    def _wake(self, engine: Engine) -> None:
        engine.advance(inf, max_steps=1)
