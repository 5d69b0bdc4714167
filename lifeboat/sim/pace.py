"""How many requests an engine serves per second: a closed loop of it in virtual time.

Milliseconds of work for the loops that it is used for. Held by tests/sim/test_expected.py.
"""

from __future__ import annotations

from lifeboat.sim.engine import Engine
from lifeboat.sim.scheduler import Sequence

ROUNDS = 2
"""Requests of each user that are counted, after a first one that is not; more change nothing."""


def requests_per_s(
    engine: Engine, users: int, prompt_tokens: int, output_tokens: int
) -> float | None:
    """Return the requests served per modelled second while `users` always have one in the engine.

    engine: one that has done nothing yet. None where such a request does not fit into it.
    """
    if not engine.fits(Sequence(prompt_tokens, output_tokens)):
        return None
    for _ in range(users):
        engine.submit(Sequence(prompt_tokens, output_tokens), 0.0)
    ended_s: list[float] = []
    while len(ended_s) < users * (1 + ROUNDS):
        engine.begin_step()
        for _ in engine.end_step():
            ended_s.append(engine.now_s)
            engine.submit(Sequence(prompt_tokens, output_tokens), engine.now_s)
    return (len(ended_s) - users) / (ended_s[-1] - ended_s[users - 1])
