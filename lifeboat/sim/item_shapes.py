"""The two APIs that write an answer as items: OpenAI's Responses and Anthropic's Messages.

Event names and fields as the public SDKs read them (tests/sim/test_sdks.py).
"""

from __future__ import annotations

from typing import Any

from lifeboat.sim.bodies import Job
from lifeboat.sim.shapes import MARK, Output, TokenFrames, Usage, named_frame


class ResponsesShape:
    """`/v1/responses`."""

    def __init__(self, serial: str, model: str, created: int, job: Job) -> None:
        self._id = f"resp_{serial}"
        self._item = f"msg_{serial}"
        self._model = model
        self._created = created
        self._max_tokens = job.max_tokens
        self._number = -1
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        text, status = outputs[0].text(), self._status(outputs[0])
        return self._response(status, [self._message(text, status)], usage)

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        begun = self._response("in_progress", [], None)
        item: dict[str, Any] = self._message("", "in_progress") | {"content": []}
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=self._part("")),
        ]

    def token(self, index: int, text: str) -> bytes:
        # Not from a template: the events are numbered.
        return self._event("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def closing(self, index: int, output: Output) -> list[bytes]:
        text = output.text()
        item = self._message(text, self._status(output))
        return [
            self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
            self._event("response.content_part.done", **self._place, part=self._part(text)),
            self._event("response.output_item.done", output_index=0, item=item),
        ]

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return []

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        response = self.whole(outputs, usage)
        return [self._event(f"response.{response['status']}", response=response)]

    def _status(self, output: Output) -> str:
        # Where the client named no limit it was the simulator's default that ended the answer,
        # which stands for the length the model wanted: complete, and what SDK helpers wait for.
        return "incomplete" if output.hit_limit and self._max_tokens else "completed"

    @staticmethod
    def _part(text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _message(self, text: str, status: str) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part(text)],
        }

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        figures = None if usage is None else _responses_usage(usage)
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": (
                {"reason": "max_output_tokens"} if status == "incomplete" else None
            ),
            "instructions": None,
            "max_output_tokens": self._max_tokens,
            "metadata": {},
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": figures,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return named_frame({"type": kind, "sequence_number": self._number, **fields})


def _responses_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class MessagesShape:
    """Anthropic's `/v1/messages`."""

    def __init__(self, serial: str, model: str, created: int, job: Job) -> None:
        self._base: dict[str, Any] = {
            "id": f"msg_{serial}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._tokens = TokenFrames(
            lambda index: self._delta(index, {"type": "text_delta", "text": MARK})
        )

    def whole(self, outputs: list[Output], usage: Usage | None) -> dict[str, Any]:
        output = outputs[0]
        body = {
            **self._base,
            "content": [{"type": "text", "text": output.text()}],
            "stop_reason": self._stop_reason(output),
            "stop_sequence": output.stopped_at,
        }
        return body if usage is None else body | {"usage": _messages_usage(usage)}

    def opening(self, index: int, prompt_tokens: int) -> list[bytes]:
        begun = Usage(prompt_tokens, 0)
        message: dict[str, Any] = {
            **self._base,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _messages_usage(begun),
        }
        block = {"type": "text", "text": ""}
        return [
            named_frame({"type": "message_start", "message": message}),
            named_frame({"type": "content_block_start", "index": index, "content_block": block}),
        ]

    def token(self, index: int, text: str) -> bytes:
        return self._tokens.frame(index, text)

    def closing(self, index: int, output: Output) -> list[bytes]:
        return [named_frame({"type": "content_block_stop", "index": index})]

    def ending(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        delta = {
            "stop_reason": self._stop_reason(outputs[0]),
            "stop_sequence": outputs[0].stopped_at,
        }
        event: dict[str, Any] = {"type": "message_delta", "delta": delta}
        if usage is not None:
            event["usage"] = {"output_tokens": usage.completion_tokens}
        return [named_frame(event)]

    def last(self, outputs: list[Output], usage: Usage | None) -> list[bytes]:
        return [named_frame({"type": "message_stop"})]

    def _delta(self, index: int, delta: dict[str, Any]) -> bytes:
        return named_frame({"type": "content_block_delta", "index": index, "delta": delta})

    def _stop_reason(self, output: Output) -> str:
        if output.hit_limit:
            return "max_tokens"
        return "stop_sequence" if output.stopped_at is not None else "end_turn"


def _messages_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
