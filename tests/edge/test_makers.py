"""Ids go back to the backend that made them; memory is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lifeboat.edge.makers import Maker, Makers
from tests.acceptance.engines import SayingEngine, json_answer
from tests.peers import Peer, Received
from tests.running import Running, backend, backends_yaml, running_router


def test_the_oldest_ids_are_forgotten() -> None:
    makers = Makers(most=2)
    for name in ("a", "b", "a", "c"):
        makers.remember(name, Maker(name, "m"))
    assert [makers.find(name) is not None for name in ("a", "b", "c")] == [True, False, True]


class JobServer(SayingEngine):
    """Makes objects, streamed where asked, and shows them; each server has its own."""

    def __init__(self, name: str) -> None:
        super().__init__(self._make)
        self.name = name
        self.read: list[tuple[str, str]] = []

    async def _make(self, peer: Peer, received: Received) -> None:
        made = f"{'video' if 'video' in received.target else 'resp'}_{self.name}_{len(self.asked)}"
        if b'"stream": true' in received.body:
            event = b'event: response.created\ndata: {"type": "response.created", "response": '
            event += b'{"id": "%b", "object": "response"}}\n\n' % made.encode()
            await peer.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            # Cut in the middle of the id.
            await peer.chunk(event[:85])
            await asyncio.sleep(0.02)
            await peer.chunk(event[85:])
            await peer.send(b"0\r\n\r\n")
        else:
            await peer.send(json_answer({"id": made, "object": "response", "by": self.name}))

    async def _serve(self, peer: Peer) -> None:
        while True:
            received = await peer.request()
            if received.method == "POST" and received.target in ("/v1/responses", "/v1/videos"):
                self.asked.append(received)
                await self._make(peer, received)
            else:
                if "_" in received.target:
                    self.read.append((received.method, received.target))
                await peer.send(json_answer({"by": self.name}))


async def made_ids(running: Running, path: str, stream: bool) -> dict[str, str]:
    """Make objects until both servers have made one; return the id made by each."""
    found: dict[str, str] = {}
    while len(found) < 2:
        body = {"model": "m", "input": "x", "prompt": "x", "stream": stream}
        answer = await running.ask(path, body)
        assert answer.status == 200
        text = answer.body.decode()
        start = text.index('"id": "') + 7
        found[answer.headers["X-Lifeboat-Backend"]] = text[start : text.index('"', start)]
    return found


async def test_sub_paths_go_to_the_backend_that_made_the_id(tmp_path: Path) -> None:
    async with JobServer("a") as a, JobServer("b") as b:
        serves = ["generate", "video"]
        yaml = backends_yaml(backend(a.url, "a", serves=serves), backend(b.url, "b", serves=serves))
        async with running_router(yaml, tmp_path) as running:
            for path, stream in (
                ("/v1/responses", False), ("/v1/responses", True), ("/v1/videos", False),
            ):  # fmt: skip
                for name, object_id in (await made_ids(running, path, stream)).items():
                    for method, below in (("GET", ""), ("GET", "?after=1"), ("DELETE", "")):
                        target = f"{path}/{object_id}{below}"
                        answer = await running.ask(target, method=method)
                        assert answer.json == {"by": name}
                        assert answer.headers["X-Lifeboat-Backend"] == name
                        server = a if name == "a" else b
                        assert server.read[-1] == (method, target)
                    if path == "/v1/responses":
                        answer = await running.ask(f"{path}/{object_id}/cancel", b"")
                    else:
                        answer = await running.ask(f"{path}/{object_id}/content", method="GET")
                    assert answer.json == {"by": name}
            assert not any((await running.settle())["inflight"].values())


async def test_an_unknown_id_is_a_404_and_a_maker_out_of_service_a_temporary_503(
    tmp_path: Path,
) -> None:
    async with JobServer("a") as a:
        async with running_router(backends_yaml(backend(a.url, "a")), tmp_path) as running:
            unknown = await running.ask("/v1/responses/resp_nobody", method="GET")
            assert (unknown.status, unknown.error["code"]) == (404, "not_found")
            made = await running.ask("/v1/responses", {"model": "m", "input": "x"})
            await running.admin("PATCH", "backends/a", {"state": "maint"})
            # A job is read even while its backend takes nothing new.
            read = await running.ask(f"/v1/responses/{made.json['id']}", method="GET")
            assert read.status == 200
            await running.admin("DELETE", "backends/a")
            gone = await running.ask(f"/v1/responses/{made.json['id']}", method="GET")
            assert (gone.status, gone.error["code"]) in ((503, "no_backends"), (404, "not_found"))
