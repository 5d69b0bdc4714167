"""What a probe asks and what its answer means. Pure; the asking is `watch`'s.

An answer below 500, whatever it is, shows a server that answers: 4xx proves nothing against it (a
missing key, a server without `/health`), and an HTML page is taken as alive too; what keeps a wrong
server out is that it lists no models. Busy is not down: an overload answer, old llama.cpp's "no
slot available" included, is an OK. Held by tests/fleet/test_pure_parts.py. Sources: the contract's
section 5; BUG-114, 171, 177 and 178 of the public cases.
"""

from __future__ import annotations

from typing import assert_never

from lifeboat.core.answers import classify
from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.vocabulary import Kind, Verdict
from lifeboat.fleet.inquiry import AskError, Reply
from lifeboat.fleet.listings import MODELS_PATH

HEALTH_PATH = "/health"


def probe_path(kind: Kind) -> str:
    """Return the path whose answer tells whether a server of this kind is well."""
    match kind:
        case Kind.GGUF | Kind.VLLM | Kind.SIMULATED:
            return HEALTH_PATH
        case Kind.OPENAI:
            return MODELS_PATH
        case _:
            assert_never(kind)


def judge(reply: Reply | AskError, kind: Kind) -> Probe:
    """Return what the answer to a probe, or its absence, says of the backend."""
    if isinstance(reply, AskError):
        result = ProbeResult.REFUSED if reply.refused else ProbeResult.FAILED
        return Probe(result, reply.detail)
    outcome = classify(
        reply.status, reply.content_type, reply.body, None, kind, own_key=False, wall_now=0.0
    )
    if outcome.verdict is Verdict.LOADING:
        return Probe(ProbeResult.LOADING, "the server is loading its model")
    if outcome.verdict is Verdict.SERVER_ERROR:
        return Probe(ProbeResult.FAILED, f"GET {probe_path(kind)} answered {reply.status}")
    return Probe(ProbeResult.OK)
