"""Many clients at once, each of which asks again as soon as it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.running import CHAT, chat_body


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it.

    status: None where no head came. whole: the answer ended as its own framing says. code: of an
    error body. fault: what broke, in words.
    """

    status: int | None
    whole: bool
    began_at: float
    ended_at: float
    backend: str | None = None
    attempts: int = 0
    code: str | None = None
    fault: str | None = None

    @property
    def good(self) -> bool:
        return self.status == 200 and self.whole

    @property
    def failed_before_a_byte(self) -> bool:
        """Whether the client was told of a failure that it should not have been told of."""
        return self.status != 200


async def ask_once(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, object], path: str = CHAT
) -> Seen:
    """Send one request and read what comes."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    status: int | None = None
    backend: str | None = None
    attempts = 0
    try:
        async with session.post(f"{url}{path}", json=body) as answer:
            status, headers = answer.status, answer.headers
            backend = headers.get("X-Lifeboat-Backend")
            attempts = int(headers.get("X-Lifeboat-Attempts", 0))
            raw = await answer.read()
    except (aiohttp.ClientError, OSError) as error:
        fault = f"{type(error).__name__}: {error}"
        return Seen(status, False, began_at, loop.time(), backend, attempts, fault=fault)
    whole = not body.get("stream") or raw.rstrip().endswith(b"data: [DONE]") or status != 200
    code = None if status == 200 else _code(raw)
    return Seen(status, whole, began_at, loop.time(), backend, attempts, code)


def _code(raw: bytes) -> str | None:
    try:
        page: Any = json.loads(raw)
        return str(page["error"].get("code"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass
class Crowd:
    """The clients and what they have seen so far."""

    seen: list[Seen] = field(default_factory=list)

    def since(self, at: float) -> list[Seen]:
        """Return what was asked since then."""
        return [one for one in self.seen if one.began_at >= at]

    def bad(self) -> Counter[str]:
        """Return the failures before a byte, by what they were."""
        return Counter(
            f"{one.status} {one.code or one.fault}" for one in self.seen if one.failed_before_a_byte
        )

    async def served(self, more: int, seconds: float = 20.0) -> None:
        """Wait until so many more were answered well."""
        goal = sum(one.good for one in self.seen) + more
        async with asyncio.timeout(seconds):
            while sum(one.good for one in self.seen) < goal:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def crowd(
    url: str, clients: int, *, tokens: int = 20, pause_s: float = 0.0
) -> AsyncIterator[Crowd]:
    """Keep so many clients asking, every second one for a stream, and each to its answer's end."""
    found = Crowd()
    leaving = asyncio.Event()

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        body = chat_body(f"I am {number}.", max_tokens=tokens, stream=bool(number % 2))
        while not leaving.is_set():
            found.seen.append(await ask_once(session, url, body))
            if pause_s or not found.seen[-1].good:
                # Who is refused must not ask in a tight loop.
                await asyncio.sleep(max(pause_s, 0.05))

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=40)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(clients):
            tasks.create_task(client(session, number))
        try:
            yield found
        finally:
            leaving.set()
