"""A served model: its engines (replicas) as one, for admission, reports and run-time capacity.

Replicas are engines of their own behind one name. Every figure of the row is their sum; a change
applies to each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.driver import EngineDriver, EngineGoneError, Reply, Saturated, TooManyInFlight
from lifeboat.sim.metrics import Latencies
from lifeboat.sim.scheduler import Sequence


class ServedModel:
    """One model of a server. Built inside a running event loop.

    clock: the event loop's time in seconds.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.names = config.names
        self.context_tokens = config.context_tokens
        self.first_token = Latencies()
        self.drivers = [
            EngineDriver(
                engine,
                clock=clock,
                time_scale=config.time_scale,
                pacing=config.pacing,
                max_in_flight=config.max_num_queued_reqs,
            )
            for engine in config.engines()
        ]

    @property
    def alive(self) -> bool:
        """Whether any engine still computes."""
        return any(driver.alive for driver in self.drivers)

    @property
    def running(self) -> int:
        """Sequences that hold a seat."""
        return sum(len(driver.engine.running) for driver in self.drivers)

    @property
    def waiting(self) -> int:
        """Sequences in line, as admission counts them."""
        return sum(driver.engine.depth for driver in self.drivers)

    @property
    def max_num_seqs(self) -> int:
        """Seats, over all replicas."""
        return sum(driver.engine.scheduler.max_num_seqs for driver in self.drivers)

    @property
    def max_waiting(self) -> int:
        """Bound of the line, over all replicas; 0 = unbounded."""
        return sum(driver.engine.max_waiting for driver in self.drivers)

    @property
    def kv_usage(self) -> float:
        """Part of the KV cache in use, 0 to 1, over all replicas."""
        return sum(d.engine.scheduler.kv.usage for d in self.drivers) / len(self.drivers)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed since start."""
        return sum(driver.engine.scheduler.prompt_tokens for driver in self.drivers)

    @property
    def generation_tokens(self) -> int:
        """Tokens emitted since start."""
        return sum(driver.engine.scheduler.emitted_tokens for driver in self.drivers)

    @property
    def preemptions(self) -> int:
        """Preemptions since start."""
        return sum(driver.engine.scheduler.preemptions for driver in self.drivers)

    @property
    def refused(self) -> int:
        """Requests refused for load since start."""
        return sum(driver.refused for driver in self.drivers)

    def admit(
        self, sequences: list[Sequence]
    ) -> tuple[EngineDriver, Reply] | Saturated | TooManyInFlight:
        """Give a request to the replica with the least in flight, or say why not.

        Raises EngineGoneError when no replica is left.
        """
        alive = [driver for driver in self.drivers if driver.alive]
        if not alive:
            raise EngineGoneError
        self.look()
        driver = min(alive, key=lambda driver: driver.engine.in_flight)
        answer = driver.admit(sequences)
        match answer:
            case Reply():
                return driver, answer
            case Saturated():
                # The replicas have equal bounds: when the emptiest is full, all are.
                return Saturated(self.waiting, self.max_waiting)
            case TooManyInFlight():
                return answer

    def observe(self, reply: Reply) -> None:
        """Record how long the sequences of a request that is over waited for their first token."""
        for sequence in reply.sequences:
            if sequence.first_token_s >= 0.0:
                virtual_s = sequence.first_token_s - sequence.arrived_s
                self.first_token.observe(virtual_s * self.config.time_scale)

    def look(self) -> None:
        """Bring all engines up to the present moment."""
        for driver in self.drivers:
            driver.look()

    def retune(self, max_num_seqs: int | None, max_waiting: int | None) -> None:
        """Change the knobs of every replica; None leaves one as it is. Evicts nobody."""
        self.look()
        for driver in self.drivers:
            if max_num_seqs is not None:
                driver.engine.scheduler.max_num_seqs = max_num_seqs
            if max_waiting is not None:
                driver.engine.max_waiting = max_waiting

    def row(self) -> dict[str, Any]:
        """Return the seed's capacity row."""
        self.look()
        return {
            "model": self.names[0],
            "max_waiting": self.max_waiting,
            "max_num_seqs": self.max_num_seqs,
            "waiting": self.waiting,
            "running": self.running,
        }
