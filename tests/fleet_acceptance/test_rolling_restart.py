"""The router is replaced, process by process on one port; clients retry refused connects only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient, Reply
from tests.running import CHAT, RouterProcess, backend, backends_yaml, chat_body

FRESH, KEPT, STREAMS = 24, 6, 4
RESTARTS = 3
PLAIN = json.dumps(chat_body()).encode()
STREAM = json.dumps(chat_body(stream=True)).encode()


@dataclass
class Crowd:
    """Clients that open a connection for each request, or keep it while they may.

    broken: what no client may see: a connection that was taken and ended without a whole answer.
    """

    port: int
    answers: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    refused: int = 0
    leaving: bool = False

    async def connect(self) -> RawClient:
        """Connect; a refused one is tried again, and nothing else is."""
        while True:
            try:
                return await RawClient.connect(self.port)
            except ConnectionRefusedError:
                self.refused += 1
                await asyncio.sleep(0.01)

    async def exchange(self, client: RawClient, body: bytes, close: bool) -> Reply | None:
        try:
            await client.post(CHAT, body, *([b"Connection: close"] if close else []))
            reply = await client.reply()
        except (OSError, EOFError) as error:
            self.broken.append(f"{type(error).__name__}: {error}")
            return None
        if not reply.clean:
            self.broken.append(f"{reply.status}, cut after {len(reply.body)} bytes")
            return None
        code = "" if reply.status == 200 else json.loads(reply.body)["error"]["code"]
        self.answers[f"{reply.status} {code}".strip()] += 1
        return reply

    async def fresh(self, body: bytes) -> None:
        while not self.leaving:
            client = await self.connect()
            await self.exchange(client, body, close=True)
            client.close()

    async def kept(self) -> None:
        while not self.leaving:
            client = await self.connect()
            while not self.leaving:
                reply = await self.exchange(client, PLAIN, close=False)
                if reply is None or b"close" in b" ".join(reply.values(b"connection")).lower():
                    break
            client.close()


async def test_a_rolling_restart_resets_no_connection(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async with HeldEngine(hold_s=0.02) as engine:
        entry = backend(engine.url, max_concurrency=16)
        queue = {"enabled": True, "max_depth": 500}
        (tmp_path / "backends.yaml").write_text(backends_yaml(entry, queue=queue))
        environ = {"LIFEBOAT_LB_TOKENIZER": "quick", "LIFEBOAT_LOG_LEVEL": "error"}
        router = await RouterProcess.start(cwd=tmp_path, environ=environ)
        crowd = Crowd(router.port)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(FRESH):
                    tasks.create_task(crowd.fresh(PLAIN))
                for _ in range(STREAMS):
                    tasks.create_task(crowd.fresh(STREAM))
                for _ in range(KEPT):
                    tasks.create_task(crowd.kept())
                for _ in range(RESTARTS):
                    await asyncio.sleep(0.6)
                    assert await router.stop() == 0
                    port = str(crowd.port)
                    router = await RouterProcess.start(
                        "--port", port, cwd=tmp_path, environ=environ
                    )
                await asyncio.sleep(0.6)
                crowd.leaving = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                await router.stop()
        measured(
            f"{RESTARTS} restarts, {dict(crowd.answers)}, {crowd.refused} refused connects tried "
            f"again, {len(crowd.broken)} broken"
        )
        assert not crowd.broken
        assert set(crowd.answers) <= {"200", "503 shutting_down"}
        assert crowd.answers["200"] > 300
        assert crowd.refused > 0


async def test_whoever_stands_in_the_accept_queue_is_answered_too(tmp_path: Path) -> None:
    """The process is stopped, so that the kernel alone takes connections; then told to end."""
    async with HeldEngine(hold_s=0.02) as engine:
        entry = backend(engine.url, max_concurrency=16)
        (tmp_path / "backends.yaml").write_text(backends_yaml(entry))
        router = await RouterProcess.start(cwd=tmp_path, environ={"LIFEBOAT_LB_TOKENIZER": "quick"})
        try:
            router.process.send_signal(signal.SIGSTOP)
            clients = [await RawClient.connect(router.port) for _ in range(60)]
            for client in clients:
                await client.post(CHAT, PLAIN)
            router.process.send_signal(signal.SIGTERM)
            router.process.send_signal(signal.SIGCONT)
            replies = [await client.reply() for client in clients]
            assert all(reply.clean for reply in replies)
            codes = {
                "200" if reply.status == 200 else json.loads(reply.body)["error"]["code"]
                for reply in replies
            }
            assert codes <= {"200", "shutting_down"}
            assert "shutting_down" in codes
            for client in clients:
                client.close()
            assert await asyncio.wait_for(router.process.wait(), 10) == 0
        finally:
            await router.stop()
