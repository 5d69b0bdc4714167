"""How each API writes an answer: as one JSON body, and as server-sent events.

A shape holds one answer's identity and writes frames; it knows nothing of time. Everything
generated is plain ASCII without quotes, so a token's frame is put together from bytes made once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from lifeboat.sim.bodies import Job
from lifeboat.sim.text import TOKEN_BYTES, answer

DONE = b"data: [DONE]\n\n"
MARK = "@lifeboat@"
"""Stands for the text of a token in a template frame."""


@dataclass(frozen=True, slots=True)
class Output:
    """The answer of one sequence, decided when it is admitted.

    tokens: charged. visible: characters that are shown (fewer when a stop string is cut off).
    hit_limit: it ended because `max_tokens` was reached. stopped_at: the stop string that ended it.
    """

    seed: int
    tokens: int
    visible: int
    hit_limit: bool
    stopped_at: str | None = None

    def text(self) -> str:
        """The whole shown text."""
        return answer(self.seed, self.tokens)[: self.visible]


def plan_output(job: Job, seed: int, max_tokens: int, natural_tokens: int | None) -> Output:
    """Decide how long an answer gets: up to max_tokens, its natural end, or a stop string."""
    tokens = max_tokens
    if natural_tokens is not None and not job.ignore_eos:
        tokens = min(tokens, natural_tokens)
    if job.stop:
        text = answer(seed, tokens)
        hits = [(text.index(stop), stop) for stop in job.stop if stop in text]
        if hits:
            at, stop = min(hits)
            return Output(seed, -(-(at + len(stop)) // TOKEN_BYTES), at, False, stop)
    return Output(seed, tokens, tokens * TOKEN_BYTES, tokens == max_tokens)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens charged."""

    prompt_tokens: int
    completion_tokens: int

    def openai(self) -> dict[str, int]:
        """As chat, completions and embeddings spell it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    def input_output(self) -> dict[str, int]:
        """As Responses and Messages spell it."""
        return {"input_tokens": self.prompt_tokens, "output_tokens": self.completion_tokens}


class Shape(Protocol):
    """One answer of one API. Frames come in this order: opening, tokens, closing, ending, last."""

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        """Return the answer as one body."""
        ...

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        """Return the frames before the first token of a choice."""
        ...

    def token(self, index: int, text: str) -> bytes:
        """Return the frame of one token; `text` is plain ASCII without quotes or backslashes."""
        ...

    def closing(self, index: int, output: Output) -> list[bytes]:
        """Return the frames after the last token of a choice."""
        ...

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        """Return the frames after all choices, before the last one."""
        ...

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        """Return the frame that tells a client that the answer is complete."""
        ...


def data_frame(payload: Any) -> bytes:
    """Return a `data:` event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def named_frame(payload: dict[str, Any]) -> bytes:
    """Return an event named by the payload's type."""
    return b"event: " + str(payload["type"]).encode() + b"\n" + data_frame(payload)


class TokenFrames:
    """The frames of a choice's tokens, made from a template frame whose text is `MARK`."""

    def __init__(self, template: Callable[[int], bytes]) -> None:
        self._template = template
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def frame(self, index: int, text: str) -> bytes:
        """Return the template frame of a choice with `text` in it."""
        around = self._around.get(index)
        if around is None:
            before, after = self._template(index).split(MARK.encode())
            around = self._around[index] = (before, after)
        return around[0] + text.encode() + around[1]


def finish_reason(output: Output) -> str:
    """OpenAI's word for why the answer ended."""
    return "length" if output.hit_limit else "stop"


class ChatShape:
    """`/v1/chat/completions`."""

    def __init__(self, serial: str, model: str, created: int, job: Job) -> None:
        self._base: dict[str, Any] = {
            "id": f"chatcmpl-{serial}",
            "created": created,
            "model": model,
        }
        self._include_usage = job.include_usage
        self._tokens = TokenFrames(lambda index: self._chunk(index, {"content": MARK}, None))

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": output.text()},
                "logprobs": None,
                "finish_reason": finish_reason(output),
            }
            for index, output in enumerate(outputs)
        ]
        body = {**self._base, "object": "chat.completion", "choices": choices}
        return body if usage is None else {**body, "usage": usage.openai()}

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        return [self._chunk(index, {"role": "assistant", "content": ""}, None)]

    def token(self, index: int, text: str) -> bytes:
        return self._tokens.frame(index, text)

    def closing(self, index: int, output: Output) -> list[bytes]:
        return [self._chunk(index, {}, finish_reason(output))]

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        if usage is None or not self._include_usage:
            return []
        chunk: dict[str, Any] = {**self._base, "object": "chat.completion.chunk", "choices": []}
        return [data_frame({**chunk, "usage": usage.openai()})]

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return [DONE]

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return data_frame({**self._base, "object": "chat.completion.chunk", "choices": [choice]})


class CompletionShape:
    """`/v1/completions`."""

    def __init__(self, serial: str, model: str, created: int, job: Job) -> None:
        self._base: dict[str, Any] = {
            "id": f"cmpl-{serial}",
            "object": "text_completion",
            "created": created,
            "model": model,
        }
        self._include_usage = job.include_usage
        self._tokens = TokenFrames(
            lambda index: data_frame({**self._base, "choices": [self._choice(index, MARK, None)]})
        )

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        choices = [
            self._choice(index, output.text(), finish_reason(output))
            for index, output in enumerate(outputs)
        ]
        body = {**self._base, "choices": choices}
        return body if usage is None else {**body, "usage": usage.openai()}

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        return []

    def token(self, index: int, text: str) -> bytes:
        return self._tokens.frame(index, text)

    def closing(self, index: int, output: Output) -> list[bytes]:
        choice = self._choice(index, "", finish_reason(output))
        return [data_frame({**self._base, "choices": [choice]})]

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        if usage is None or not self._include_usage:
            return []
        return [data_frame({**self._base, "choices": [], "usage": usage.openai()})]

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return [DONE]

    @staticmethod
    def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


class NativeShape:
    """llama.cpp's own `/completion` and `/infill`: no [DONE], the last event has `stop: true`."""

    def __init__(self, serial: str, model: str, created: int, job: Job) -> None:
        self._model = model
        self._tokens = TokenFrames(
            lambda index: data_frame({"index": index, "content": MARK, "tokens": [], "stop": False})
        )

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        return self._last(outputs[0], outputs[0].text(), usage)

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        return []

    def token(self, index: int, text: str) -> bytes:
        return self._tokens.frame(index, text)

    def closing(self, index: int, output: Output) -> list[bytes]:
        return []

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return []

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return [data_frame(self._last(outputs[0], "", usage))]

    def _last(self, output: Output, text: str, usage: Usage | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": 0,
            "content": text,
            "tokens": [],
            "stop": True,
            "model": self._model,
            "stop_type": "limit" if output.hit_limit else "eos",
        }
        if usage is None:
            return body
        return body | {
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
        }
