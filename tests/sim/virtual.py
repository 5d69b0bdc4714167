"""Closed loops in virtual time: users who send their next request when the last one is answered."""

from __future__ import annotations

from dataclasses import dataclass

from lifeboat.sim.config import EngineConfig
from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence


def engine(
    model: str = "gpt-oss-20b",
    hardware: str = "b200",
    *,
    max_num_seqs: int = 256,
    max_waiting: int = 0,
    token_budget: int = 8192,
    kv_blocks: int | None = None,
) -> Engine:
    """Return an engine that has done nothing yet."""
    cost = EngineConfig(model=model, hardware=hardware).cost_model()
    return Engine(
        cost,
        max_num_seqs=max_num_seqs,
        max_waiting=max_waiting,
        token_budget=token_budget,
        kv_blocks=kv_blocks,
    )


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a closed loop measured once it was steady."""

    latency_s: float
    tokens_per_s: float


def closed_loop(
    tested: Engine, *, users: int, prompt_tokens: int, output_tokens: int = 200, rounds: int = 6
) -> ClosedLoop:
    """Run a closed loop and measure its second half: mean latency and throughput."""
    for _ in range(users):
        tested.submit(Sequence(prompt_tokens, output_tokens), 0.0)
    done: list[Sequence] = []
    while len(done) < users * rounds:
        tested.begin_step()
        finished = tested.end_step()
        done += finished
        for _ in finished:
            tested.submit(Sequence(prompt_tokens, output_tokens), tested.now_s)
    steady = done[users * rounds // 2 :]
    latency_s = sum(s.finished_s - s.arrived_s for s in steady) / len(steady)
    span_s = steady[-1].finished_s - done[users * rounds // 2 - 1].finished_s
    return ClosedLoop(latency_s, len(steady) * output_tokens / span_s)
