"""Answers other than 200, with the manners of the server that is imitated.

Sources: the saturation seed for the 529; for the rest, what real vLLM and llama.cpp servers
answered (docs/explanation/simulated-engine.md lists it).
"""

from __future__ import annotations

from typing import Any

from lifeboat.sim.config import Personality
from lifeboat.sim.driver import Saturated, TooManyInFlight


class Refused(Exception):
    """An answer that ends a request before its response began: a status and a JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body


def envelope(message: str, kind: str, code: object, param: str | None = None) -> dict[str, Any]:
    """Return the OpenAI error envelope; `param` is left out where it is None."""
    error: dict[str, Any] = {"message": message, "type": kind, "code": code}
    if param is not None:
        error["param"] = param
    return {"error": error}


def saturated(found: Saturated) -> Refused:
    """The seed's 529, word for word."""
    message = (
        f"Server is at capacity: {found.waiting} requests waiting "
        f"(max_waiting = {found.max_waiting}). Retry with reduced concurrency."
    )
    return Refused(529, envelope(message, "overloaded_error", "queue_saturated"))


def too_many_in_flight(found: TooManyInFlight) -> Refused:
    """vLLM's 503 when `--max-num-queued-reqs` is reached."""
    message = (
        f"The engine's queue is full: {found.in_flight} requests in flight "
        f"(max_num_queued_reqs = {found.bound}). Please retry later."
    )
    return Refused(503, envelope(message, "ServiceUnavailableError", 503))


def engine_gone() -> Refused:
    """A liveness failure, not saturation: the engine computes nothing any more."""
    return Refused(503, envelope("The engine is gone.", "service_unavailable", "engine_gone"))


def loading() -> Refused:
    """What llama.cpp answers on every route while it loads its model."""
    return Refused(503, envelope("Loading model", "unavailable_error", 503))


def invalid(message: str, param: str | None = None) -> Refused:
    """A body that cannot be served as it is."""
    return Refused(400, envelope(message, "invalid_request_error", "invalid_request", param))


def unknown_model(name: str) -> Refused:
    """No such model here."""
    message = f"The model `{name}` does not exist."
    return Refused(404, envelope(message, "NotFoundError", "model_not_found", "model"))


def not_offered(personality: Personality, embedding_asked: bool) -> Refused:
    """The model has not the capability: each server has its own way to say so.

    vLLM has no such route. llama.cpp answers 501 to embeddings on a chat server, and 500 to a
    chat on an embedding model.
    """
    if personality is Personality.VLLM:
        return Refused(404, {"detail": "Not Found"})
    if embedding_asked:
        message = "This server does not support embeddings. Start it with `--embeddings`"
        return Refused(501, envelope(message, "not_supported_error", 501))
    return Refused(500, envelope("the current model cannot generate text", "server_error", 500))


def too_long(
    personality: Personality, prompt_tokens: int, max_tokens: int | None, context: int
) -> Refused:
    """The 400 over the context length; max_tokens: None where the request named none."""
    if personality is Personality.GGUF:
        message = (
            f"request ({prompt_tokens} tokens) exceeds the available context size "
            f"({context} tokens), try increasing it"
        )
        body = envelope(message, "exceed_context_size_error", 400)
        body["error"] |= {"n_prompt_tokens": prompt_tokens, "n_ctx": context}
        return Refused(400, body)
    wanted = max_tokens or 0
    message = (
        f"This model's maximum context length is {context} tokens. However, you passed "
        f"{prompt_tokens} input tokens and requested {wanted} output tokens. Please reduce the "
        f"length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
    )
    return Refused(400, envelope(message, "BadRequestError", 400, "input_tokens"))


def never_fits(prompt_tokens: int, max_tokens: int, cache_tokens: int) -> Refused:
    """The sequence is longer than the whole KV cache."""
    message = (
        f"The KV cache holds {cache_tokens} tokens in all; this request would need "
        f"{prompt_tokens} for its prompt and up to {max_tokens} for its answer."
    )
    return Refused(400, envelope(message, "BadRequestError", "kv_cache_too_small", "input_tokens"))
