"""The backend of the comparison: an asyncio protocol that answers at once, or streams 200 events.

    python -m bench.peers.stub PORT

It costs as little as it can and answers every proxy the same. `/health`, `/v1/models` and the
pages that the routers ask for at their start get a JSON answer that names the model `m`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

EVENTS = 200
EVENT_PAUSE_S = 0.002

_ANSWER = (
    b'{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":1,"total_tokens":13}}'
)
_MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'
_INFO = b'{"status":"ok","model_path":"m","served_model_name":"m","tokenizer_path":"","dp_size":1}'
_EVENT = (
    b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":'
    b'{"content":"tok"}}]}\n\n'
)
_CHUNK = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


_WHOLE_ANSWER, _WHOLE_MODELS, _WHOLE_INFO = _whole(_ANSWER), _whole(_MODELS), _whole(_INFO)


class Stub(asyncio.Protocol):
    """One connection: Content-Length bodies only, one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for stream in self._streams:
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            after = end + 4 + length
            if len(self._buffer) < after:
                return
            body, self._buffer = self._buffer[end + 4 : after], self._buffer[after:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        if head.startswith(b"get"):
            models = b"/v1/models" in head.split(b"\r\n", 1)[0]
            self._transport.write(_WHOLE_MODELS if models else _WHOLE_INFO)
        elif b'"stream":true' in body:
            stream = asyncio.create_task(self._stream(self._transport))
            self._streams.add(stream)
            stream.add_done_callback(self._streams.discard)
        else:
            self._transport.write(_WHOLE_ANSWER)

    async def _stream(self, transport: asyncio.Transport) -> None:
        transport.write(_STREAM_HEAD)
        for _ in range(EVENTS):
            transport.write(_CHUNK)
            await asyncio.sleep(EVENT_PAUSE_S)
        transport.write(b"0\r\n\r\n")


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
