"""The script of a seed: clients and engines at random, the same ones every time."""

from __future__ import annotations

from random import Random

from tests.conformance.lane_clients import part, send
from tests.conformance.lane_script import Action, Do, Doing, Pause, Release, Script, Setup

MOST_REQUESTS = 5
MOST_CONNECTIONS = 3


def setup(rng: Random) -> Setup:
    """A router."""
    return Setup(
        engines=rng.choice((1, 1, 2)),
        kind=rng.choice(("openai", "vllm", "gguf")),
        max_concurrency=rng.choice((1, 2, 0)),
        queue=rng.random() < 0.5,
        max_depth=rng.choice((None, 0, 1)),
        max_input_tokens=rng.choice((0, 100)),
        keys=rng.random() < 0.15,
        cors=rng.random() < 0.15,
        early_refusal=rng.random() < 0.15,
    )


_KINDS = ("send",) * 6 + ("release", "release", "part", "do", "do", "wait")


def script(seed: int) -> Script:
    """The script of a seed."""
    rng = Random(seed)
    router = setup(rng)
    actions: list[Action] = []
    open_ones = list(range(rng.randint(1, MOST_CONNECTIONS)))
    sent = 0
    for _ in range(rng.randint(1, 2 * MOST_REQUESTS)):
        if not open_ones:
            break
        at = rng.choice(open_ones)
        kind = rng.choice(_KINDS)
        if kind == "send" and sent < MOST_REQUESTS:
            actions.append(send(rng, at, sent, keys=router.keys))
            sent += 1
        elif kind == "release" and sent:
            actions.append(Release(rng.randrange(sent)))
        elif kind == "part":
            actions.append(part(rng, at, keys=router.keys))
            open_ones.remove(at)
            if rng.random() < 0.5:
                actions.append(Do(at, rng.choice(_LEAVING)))
        elif kind == "do":
            what = rng.choice(tuple(Doing))
            actions.append(Do(at, what))
            if what in _LEAVING:
                open_ones.remove(at)
        elif kind == "wait":
            actions.append(Pause(rng.choice((0.005, 0.02))))
    return Script(router, tuple(actions))


_LEAVING = (Doing.CLOSE, Doing.RESET, Doing.HALF_CLOSE)
