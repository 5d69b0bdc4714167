"""The load: a real trace of arrivals, replayed with its bursts at a rate of our choice.

The trace is one hour of a code-completion service (Azure, 2023; cite Splitwise, ISCA 2024): when
requests came and how many tokens they had. It carries no text, so prompts are filler of that
length. Each client checks the whole answer, which the simulated engine makes from the prompt alone.
"""

from __future__ import annotations

import asyncio
import csv
import json
import random
import time
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

import aiohttp

from lifeboat.sim.bodies import chat_job
from lifeboat.sim.shapes import plan_output

MOST_PROMPT_TOKENS = 6_000
_FILLER = "the quick brown fox jumps over a lazy dog and then "


class End(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """An honest no: 429, 503, 504 or 529 before any byte of an answer."""
    LEFT = "left"
    """The client hung up: it had meant to, or had no patience left."""
    WRONG = "wrong"
    """Anything else: another status, a body cut off or different from the engine's."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of the trace. at_s: since the first."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(slots=True)
class Told:
    """What one client saw. took_s: from its start to its end; left_at: clock of a hang-up."""

    number: int
    end: End
    took_s: float
    left_at: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Patience:
    """most_s: every client hangs up then. restless: the share that hangs up earlier, by chance."""

    most_s: float
    restless: float
    seed: int = 1

    def of(self, number: int) -> float:
        """Return the seconds that this client waits: the same for every proxy."""
        chance = random.Random(self.seed * 1_000_003 + number)
        if chance.random() < self.restless:
            return chance.uniform(0.05, self.most_s)
        return self.most_s


def read_trace(path: Path, count: int, skip: int = 0) -> list[Arrival]:
    """Return requests of the trace in order of arrival."""
    found: list[Arrival] = []
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if number < skip:
                continue
            # Seven decimals; datetime takes six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            prompt = min(int(row["ContextTokens"]), MOST_PROMPT_TOKENS)
            found.append(Arrival(at, prompt, max(1, int(row["GeneratedTokens"]))))
            if len(found) == count:
                break
    first = found[0].at_s
    return [Arrival(a.at_s - first, a.prompt_tokens, a.answer_tokens) for a in found]


def at_rate(trace: list[Arrival], per_second: float) -> list[Arrival]:
    """Return the trace with time scaled so that its mean rate is this; the pattern stays."""
    factor = len(trace) / per_second / trace[-1].at_s
    return [Arrival(a.at_s * factor, a.prompt_tokens, a.answer_tokens) for a in trace]


def chat(number: int, arrival: Arrival) -> dict[str, object]:
    """Return the body of a request; the engines read its number back out of the prompt."""
    text = f"[{number}] "
    length = max(arrival.prompt_tokens * 4 - len(text), 4)
    text += (_FILLER * (length // len(_FILLER) + 1))[:length]
    return {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": arrival.answer_tokens,
        "stream": True,
    }


def expected_text(body: dict[str, object]) -> str:
    """Return the answer that the engine gives to this body."""
    job = chat_job(body)
    assert job.max_tokens is not None
    return plan_output(job, job.prompts[0].seed, job.max_tokens, None).text()


@dataclass(slots=True)
class Replay:
    """Sends a trace to one url; `run` returns what every client saw."""

    url: str
    patience: Patience
    told: list[Told] = field(default_factory=list[Told])

    async def run(self, trace: list[Arrival]) -> list[Told]:
        """Replay, each client on a connection of its own."""
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None),
            ) as session,
            asyncio.TaskGroup() as clients,
        ):
            begun = time.monotonic()
            for number, arrival in enumerate(trace):
                body = chat(number, arrival)
                await asyncio.sleep(max(0.0, begun + arrival.at_s - time.monotonic()))
                clients.create_task(self._client(session, number, body))
        return self.told

    async def _client(
        self, session: aiohttp.ClientSession, number: int, body: dict[str, object]
    ) -> None:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self.patience.of(number)):
                end, why = await ask(session, self.url, body)
            left_at = None
        except TimeoutError:
            end, why, left_at = End.LEFT, "", time.monotonic()
        took_s = time.monotonic() - started
        self.told.append(Told(number, end, took_s, left_at, why))


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> tuple[End, str]:
    """Send one chat and judge its answer; the text says what was wrong."""
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            raw = await answer.read()
    except (aiohttp.ClientError, ConnectionError) as error:
        return End.WRONG, repr(error)
    if answer.status in (429, 503, 504, 529):
        return End.REFUSED, str(answer.status)
    if answer.status != 200:
        return End.WRONG, f"{answer.status} {raw[:200]!r}"
    try:
        text, ended = content_of(raw)
    except (ValueError, KeyError, TypeError) as error:
        return End.WRONG, f"unreadable: {error!r}"
    if not ended:
        return End.WRONG, "without its end"
    if text != expected_text(body):
        return End.WRONG, f"another text, {len(text)} characters"
    return End.ANSWERED, ""


def content_of(raw: bytes) -> tuple[str, bool]:
    """Return the text of a stream of chat chunks, and whether `[DONE]` came."""
    pieces: list[str] = []
    ended = False
    for line in raw.splitlines():
        if not line.startswith(b"data:"):
            continue
        payload = line[5:].strip()
        if payload == b"[DONE]":
            ended = True
            continue
        choices = json.loads(payload)["choices"]
        pieces += [choice["delta"].get("content") or "" for choice in choices]
    return "".join(pieces), ended
