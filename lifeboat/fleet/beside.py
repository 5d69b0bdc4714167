"""The agent beside one model server: registers it with a router, keeps it there, drains it away.

It looks at the server as the fleet does (the same probes and engine readings), announces it with
what it learned, and says so again a few times per ttl; a router that restarts learns of it by the
next heartbeat. Held by tests/fleet/test_beside.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import quote

import aiohttp

from lifeboat.core.urls import join
from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.fleet.engines import PROPS_PATH, SEATS_PATH, parse_props, parse_seats
from lifeboat.fleet.inquiry import AGENT, AskError, Inquirer, Reply
from lifeboat.fleet.listings import MODELS_PATH, Listing, NoListingError, parse_listing
from lifeboat.fleet.members import Member, Origin

log = logging.getLogger(__name__)

HEARTBEATS_PER_TTL = 3.0
"""Two may be lost before the server is taken out."""
ASK_TIMEOUT_S = 5.0
RETRY_S = 1.0
EMPTY_POLL_S = 0.5
REFUSED_FOR_GOOD = frozenset({400, 401, 403, 404, 405})
"""Answers of the router that another try will not change."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What an agent is told.

    router: its url, the admin listener's where there is one. server: where the agent reaches the
    server; advertised: where the router does. kind: None = found out. max_concurrency: "auto" =
    the slots the server reports, where it does. grace_s: how long it may drain.
    """

    name: str
    router: str
    server: str
    advertised: str
    kind: Kind | None = None
    serves: tuple[Capability, ...] = (Capability.GENERATE,)
    max_concurrency: int | Literal["auto"] = "auto"
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ttl_s: float = 15.0
    grace_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Learned:
    """What the server said of itself."""

    kind: Kind
    slots: int | None = None


class AgentError(Exception):
    """The router refuses for good; the message says what to change."""


class Agent:
    """One agent; `run` is its whole life."""

    def __init__(self, told: Beside) -> None:
        self._told = told
        self._inquirer = Inquirer()
        self._complaint: str | None = None
        self._announced: dict[str, object] = {}
        self._member = Member(
            name=told.name, kind=told.kind or Kind.OPENAI, url=told.server,
            serves=frozenset(told.serves), api_key=told.api_key,
            connect_timeout_s=ASK_TIMEOUT_S, first_byte_timeout_s=ASK_TIMEOUT_S,
            idle_timeout_s=ASK_TIMEOUT_S, tls_ca_file=None, tls_verify=True,
            origin=Origin.REGISTERED, max_concurrency=None, max_input_tokens=0, models=None,
        )  # fmt: skip

    async def run(self, stop: asyncio.Event) -> None:
        """Register the server and keep it registered until `stop`; then drain and remove it.

        Raises AgentError where the router refuses the first registration for good.
        """
        session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
            headers={"User-Agent": AGENT},
            trust_env=False,
        )
        async with session:
            try:
                registered = await self._keep(session, stop)
                if registered:
                    await self._leave(session)
            finally:
                await self.close()

    async def close(self) -> None:
        """Close the connections to the server; `run` does so at its end."""
        await self._inquirer.close()

    async def _keep(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> bool:
        """Heartbeat until `stop`; return whether the router ever took the server in."""
        registered = False
        while not stop.is_set():
            learned = await self.learn()
            pause_s = min(RETRY_S, self._told.ttl_s / HEARTBEATS_PER_TTL)
            if learned is None:
                self._complain(f"the server at {self._told.server} does not answer yet")
            else:
                self._announced = registration_of(self._told, learned)
                status, answer = await self._call(session, "POST", "", self._announced)
                if status in (200, 201):
                    if not registered or self._complaint is not None:
                        log.info("registered %s with %s", self._told.name, self._told.router)
                    registered, self._complaint = True, None
                    pause_s = self._told.ttl_s / HEARTBEATS_PER_TTL
                elif status in REFUSED_FOR_GOOD and not registered:
                    raise AgentError(f"the router refuses: {_message(answer, status)}")
                else:
                    self._complain(f"not registered: {_message(answer, status)}")
            await _sleep_until(stop, pause_s)
        return registered

    async def learn(self) -> Learned | None:
        """Return what the server says of itself, None while it is not ready to serve."""
        props = await self._ask(PROPS_PATH)
        if props is not None and props.status == 200:
            found = parse_props(props.body)
            if found.slots is not None:
                return Learned(self._told.kind or Kind.GGUF, found.slots)
        listed = await self._ask(MODELS_PATH)
        if listed is None or listed.status >= 500:
            return None
        kind = self._told.kind or _kind_of(_listing(listed))
        return Learned(kind, await self._seats() if kind is Kind.SIMULATED else None)

    async def _seats(self) -> int | None:
        """Return the seats of a simulated server, None where it does not tell them."""
        told = await self._ask(SEATS_PATH)
        return parse_seats(told.body) if told is not None and told.status == 200 else None

    async def _leave(self, session: aiohttp.ClientSession) -> None:
        """Drain the server, wait until the router has nothing running there, and remove it."""
        name = f"/{quote(self._told.name, safe='')}"
        log.info("draining %s", self._told.name)
        status, _ = await self._call(session, "PATCH", name, {"state": "drain"})
        if status == 200:
            try:
                async with asyncio.timeout(self._told.grace_s):
                    await self._emptied(session)
            except TimeoutError:
                log.warning("%s was not empty after %g s", self._told.name, self._told.grace_s)
        status, _ = await self._call(session, "DELETE", name, None)
        log.info("removed %s (%s)", self._told.name, status or "the router does not answer")

    async def _emptied(self, session: aiohttp.ClientSession) -> None:
        """Wait until nothing runs there, and keep the heartbeat going meanwhile."""
        while True:
            if await self._in_flight(session) == 0:
                return
            await asyncio.sleep(EMPTY_POLL_S)
            await self._call(session, "POST", "", self._announced)

    async def _in_flight(self, session: aiohttp.ClientSession) -> int:
        """Return what runs there; 0 where the router does not tell."""
        _, page = await self._call(session, "GET", "", None)
        backends = page.get("backends")
        if not isinstance(backends, dict):
            return 0
        own = cast("Mapping[str, object]", backends).get(self._told.name)
        count = cast("Mapping[str, object]", own).get("in_flight") if isinstance(own, dict) else 0
        return count if isinstance(count, int) else 0

    async def _ask(self, path: str) -> Reply | None:
        try:
            return await self._inquirer.ask(self._member, path, ASK_TIMEOUT_S)
        except AskError:
            return None

    async def _call(
        self, session: aiohttp.ClientSession, method: str, path: str, body: object
    ) -> tuple[int | None, Mapping[str, Any]]:
        """Return the router's answer; status None where there is none."""
        token = self._told.token
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = join(self._told.router, f"/api/lb/backends{path}")
        try:
            async with session.request(
                method, url, headers=headers, json=body, allow_redirects=False
            ) as answer:
                text = await answer.read()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return None, {"error": {"message": f"{url}: {error or type(error).__name__}"}}
        try:
            value: object = json.loads(text)
        except ValueError:
            value = None
        return status, cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("%s", complaint)
            self._complaint = complaint


def registration_of(told: Beside, learned: Learned) -> dict[str, object]:
    """Return what is sent to the router: `POST /api/lb/backends`."""
    limit = learned.slots if told.max_concurrency == "auto" else told.max_concurrency
    body: dict[str, object] = {
        "name": told.name,
        "url": told.advertised,
        "kind": learned.kind.value,
        "serves": [capability.value for capability in told.serves],
        "max_concurrency": limit,
        "api_key": told.api_key,
        "ttl": told.ttl_s,
    }
    return {key: value for key, value in body.items() if value is not None}


_KIND_OF_OWNER = {"vllm": Kind.VLLM, "lifeboat-sim": Kind.SIMULATED}
"""What a server's list of models calls their owner -> what software it is."""


def _kind_of(listing: Listing) -> Kind:
    owners = {model.owned_by for model in listing.models}
    return next((kind for owner, kind in _KIND_OF_OWNER.items() if owner in owners), Kind.OPENAI)


def _listing(reply: Reply) -> Listing:
    try:
        return parse_listing(reply.body)
    except NoListingError:
        return Listing()


def _message(answer: Mapping[str, Any], status: int | None) -> str:
    error = answer.get("error")
    text = cast("Mapping[str, object]", error).get("message") if isinstance(error, dict) else None
    return f"{text or 'no reason given'}{'' if status is None else f' (status {status})'}"


async def _sleep_until(stop: asyncio.Event, pause_s: float) -> None:
    try:
        async with asyncio.timeout(pause_s):
            await stop.wait()
    except TimeoutError:
        return
