"""Asks backends about themselves: short requests, apart from the traffic, bounded in time and size.

Nothing here touches a counter of the gate. No proxy of the environment is used (BUG-208), no
redirect followed, no connection limit applied (a hidden one would be a queue), names are resolved
anew (BUG-204), and each member's own key, CA file and verify flag hold (BUG-114, 205, 207).
Held by tests/fleet/test_reach.py.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import aiohttp

import lifeboat
from lifeboat.core.exhaustion import is_ours
from lifeboat.core.urls import join
from lifeboat.fleet.members import Member

MOST_BYTES = 4 << 20
"""Bytes of an answer that are read: a vLLM metrics page is about 100 kB, a list of a thousand
LoRA adapters 500 kB."""
RESOLVED_FOR_S = 10
"""How long a resolved name is reused."""
IDLE_S = 4.0
"""How long a connection is kept: below llama.cpp's 5 s, and so short that a probe at the usual
pace opens a new one and resolves the name again."""
AGENT = f"lifeboat/{lifeboat.__version__}"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. body: at most MOST_BYTES of it; `cut` when there was more."""

    status: int
    content_type: str | None
    body: bytes
    cut: bool = False


class AskError(Exception):
    """No answer. refused: the connection was refused, which is proof; else it is suspicion.

    ours: this process could not even ask (no descriptor left), which says nothing.
    """

    def __init__(self, detail: str, *, refused: bool = False, ours: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.refused = refused
        self.ours = ours


class Inquirer:
    """One session of the fleet's own."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._trust: dict[Path, ssl.SSLContext] = {}

    async def ask(
        self, member: Member, path: str, timeout_s: float, body: bytes | None = None
    ) -> Reply:
        """Return the answer to GET `path`, whatever its status. Raises AskError.

        body: JSON to be sent by POST instead.
        """
        method = "GET" if body is None else "POST"
        headers = {"Accept": "application/json, text/plain;q=0.9, */*;q=0.5"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if member.api_key:
            headers["Authorization"] = f"Bearer {member.api_key}"
        try:
            async with asyncio.timeout(timeout_s):
                trust = await self.trust_of(member)
                async with self._open().request(
                    method,
                    join(member.url, path),
                    data=body,
                    headers=headers,
                    ssl=trust,
                    allow_redirects=False,
                ) as answer:
                    body = await _bounded(answer.content)
                    cut = len(body) > MOST_BYTES
                    if cut:
                        answer.close()
                    return Reply(
                        answer.status, answer.headers.get("Content-Type"), body[:MOST_BYTES], cut
                    )
        except TimeoutError:
            raise AskError(f"no answer to {method} {path} within {timeout_s:g} s") from None
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            ours = is_ours(error.os_error)
            raise AskError(_reason(error), refused=refused, ours=ours) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            ours = isinstance(error, OSError) and is_ours(error)
            raise AskError(_reason(error), ours=ours) from None

    async def trust_of(self, member: Member) -> ssl.SSLContext | bool:
        """Return how its certificate is checked: by its CA file, not at all, or as usual.

        Raises AskError where the CA file cannot be used.
        """
        if not member.tls_verify:
            return False
        path = member.tls_ca_file
        if path is None or not member.url.startswith("https:"):
            return True
        context = self._trust.get(path)
        if context is None:
            context = self._trust[path] = await self.read_trust(path)
        return context

    async def read_trust(self, path: Path) -> ssl.SSLContext:
        """Return the trust in a CA file, read anew. Raises AskError."""
        try:
            context = await asyncio.to_thread(ssl.create_default_context, cafile=str(path))
        except (OSError, ssl.SSLError) as error:
            raise AskError(f"tls.ca_file {path} cannot be used: {_reason(error)}") from None
        self._trust[path] = context
        return context

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,
                    ttl_dns_cache=RESOLVED_FOR_S,
                    keepalive_timeout=IDLE_S,
                ),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": AGENT},
                trust_env=False,
            )
        return self._session


async def _bounded(stream: aiohttp.StreamReader) -> bytes:
    """Return a body, cut just above MOST_BYTES."""
    body = bytearray()
    async for chunk in stream.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            break
    return bytes(body)


def _reason(error: BaseException) -> str:
    """Return what went wrong in few words."""
    if isinstance(error, aiohttp.ClientConnectorError):
        os_error = error.os_error
        if isinstance(os_error, ConnectionRefusedError):
            # The words of a refused request; those of the event loop do not say it.
            return "connection refused"
        return os_error.strerror or str(os_error) or "could not connect"
    return str(error)[:200] or type(error).__name__
