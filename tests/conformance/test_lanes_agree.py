"""Both lanes are one router: a random script of clients and engines ends alike on each.

    python -m pytest tests/conformance/test_lanes_agree.py                        # what CI runs
    LANES_SCRIPTS=5000 python -m pytest tests/conformance/test_lanes_agree.py     # a long run
    LANES_FIRST=1234 LANES_SCRIPTS=1 python -m pytest tests/conformance/...       # one seed again

Compared are every byte that each client was sent and how its connection ended, every request that
reached an engine, and the counters. What may differ stands in `VARYING`, with its reason. A
difference counts when it comes again in a play of its own: the machine may be slow once.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import pprint
import re

import pytest

from lifeboat.edge import server, sweep
from lifeboat.wire import lane as lane_module
from tests.conformance.lane_answers import Answer
from tests.conformance.lane_player import STILL_S, Client, Seen, play
from tests.conformance.lane_script import Action, Meeting, Script, Send, Setup
from tests.conformance.lane_scripts import script
from tests.conformance.lanes import LANES

FIRST = int(os.environ.get("LANES_FIRST", "0"))
SCRIPTS = int(os.environ.get("LANES_SCRIPTS", "120"))
AT_ONCE = 10
"""Scripts that are played at once: most of their time is waiting."""
PLAYS = 2
"""A difference must show again in each of so many plays."""

VARYING = {
    b"date": "the second in which it was written",
    b"retry-after": "computed from measured times",
    b"retry-after-ms": "computed from measured times",
}
_TIMES = ("wait_ms", "retry_after_ms", "estimated_wait_ms", "predicted")
_FRESH_ID = re.compile(rb"[0-9a-f]{32}")


def plain_header(answer: Answer, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return a header without what no two answers share."""
    low = name.lower()
    if low in VARYING or (low == b"x-request-id" and _FRESH_ID.fullmatch(value)):
        return name, b"*"
    if low == b"x-lifeboat-wait-ms":
        return name, b"0" if value == b"0" else b"*"
    if low == b"content-length" and is_ours(answer) and int(value) == len(answer.body):
        # It follows the digits of times in the body.
        return name, b"right"
    return name, value


def is_ours(answer: Answer) -> bool:
    """Say whether an answer has a JSON error of the router as its body."""
    by_engine = any(name == b"X-Lifeboat-Attempts" for name, _ in answer.headers)
    return answer.is_whole and not by_engine and b'"error": {"message"' in answer.body


def plain_body(answer: Answer) -> object:
    """Return a body without what no two answers share."""
    if not answer.headers:
        # Out of step: a body too short had swallowed the HEAD that this answers, or not.
        return re.sub(rb"[0-9a-f]{32}|Date: [^\r]*", b"*", answer.body)
    if not is_ours(answer):
        return answer.body
    page = json.loads(answer.body)
    error = page["error"]
    error.update({name: "*" for name in _TIMES if name in error})
    if _FRESH_ID.fullmatch(str(error.get("request_id")).encode()):
        error["request_id"] = "*"
    return page


def plain_answer(answer: Answer) -> object:
    """Return what must agree of an answer."""
    headers = [plain_header(answer, name, value) for name, value in answer.headers]
    ending = "whole" if answer.is_whole else "not whole"
    return (answer.first_line, headers, answer.framing, plain_body(answer), ending)


def plain_end(client: Client) -> str:
    """Return how a connection ended.

    A close is a reset to a client that was still sending, if the kernel sees its bytes in time.
    Where every answer came whole, that tells nobody anything.
    """
    is_whole = all(answer.is_whole for answer in client.answers)
    return "closed" if client.end == "reset" and is_whole else client.end


def plain_request(head: bytes) -> bytes:
    """Return a forwarded head without our ids and the engine's port."""
    head = re.sub(rb"(?i)(x-request-id: )[0-9a-f]{32}\r\n", rb"\1*\r\n", head)
    return re.sub(rb"127\.0\.0\.1:\d+", b"engine", head)


def told(seen: Seen, numbers: set[int]) -> dict[str, object]:
    """Return all that must agree of a play, by the side that saw it; of these clients."""
    out: dict[str, object] = {}
    for number in sorted(numbers):
        client = seen.clients[number]
        out[f"client {number}"] = [plain_answer(answer) for answer in client.answers]
        out[f"end of client {number}"] = plain_end(client)
    out["engines"] = sorted(
        (tag, plain_request(received.head), received.body) for tag, received in seen.engines
    )
    out["counters"] = {name: value for name, value in seen.counters.items() if value}
    return out


async def differences(script: Script) -> list[str]:
    """Play a script on both lanes at once; return what differs, in words."""
    both = await asyncio.gather(*(play(script, name) for name in LANES))
    # A reset takes away what had arrived and was not read: such a client can tell nothing.
    numbers = {
        number
        for number in both[0].clients
        if not any(seen.clients[number].was_reset_unread for seen in both)
    }
    slow, fast = (told(seen, numbers) for seen in both)
    return [
        "\n".join((side, *unlike(slow[side], fast[side])))
        for side in slow
        if slow[side] != fast[side]
    ]


def unlike(slow: object, fast: object) -> list[str]:
    """Return the lines that differ: `-` of aiohttp, `+` of the fast lane."""
    before, after = (pprint.pformat(side, width=160).splitlines() for side in (slow, fast))
    return [line for line in difflib.ndiff(before, after) if line[0] in "-+"]


async def lasting_differences(script: Script, plays: int = PLAYS) -> list[str]:
    """Return what differs in each of several plays."""
    found: list[str] = []
    for _ in range(plays):
        found = await differences(script)
        if not found:
            break
    return found


@pytest.mark.parametrize("first", range(FIRST, FIRST + SCRIPTS, AT_ONCE))
async def test_both_lanes_show_every_side_the_same(first: int) -> None:
    scripts = {seed: script(seed) for seed in range(first, min(first + AT_ONCE, FIRST + SCRIPTS))}
    found = await asyncio.gather(*map(differences, scripts.values()))
    for seed, unlike_once in zip(scripts, found, strict=True):
        if unlike_once and (lasting := await lasting_differences(scripts[seed])):
            told = "\n".join((*lasting, pprint.pformat(scripts[seed], width=160)))
            pytest.fail(f"seed {seed}\n{told}", pytrace=False)


_HOST = b"Host: h\r\n"
_PAGE = b'{"model":"m","messages":[]}'
_LENGTH = b"Content-Length: %d\r\n\r\n" % len(_PAGE)
_POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + _HOST + _LENGTH + _PAGE
_TOO_LARGE = b"POST /v1/chat/completions HTTP/1.1\r\n" + _HOST + b"Content-Length: 9000\r\n\r\n"
_H2C = _POST.replace(_HOST, _HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
_HELD = (Meeting((b"HTTP/1.1 200 OK\r\nX-Tag: 0\r\nContent-Length: 0\r\n\r\n",), 0),)

PINNED: dict[str, tuple[tuple[Action, ...], list[bytes]]] = {
    "a body that is refused unread": (
        (Send(0, 0, "POST", (_TOO_LARGE + b"x" * 100, b"x" * 8900)),),
        [b"HTTP/1.1 413 Request Entity Too Large"],
    ),
    "a later head that never ends": (
        (Send(0, 0, "POST", (_POST,)), Send(0, 1, "", (_POST[:20],))),
        [b"HTTP/1.1 200 OK"],
    ),
    "a head that never ends behind a request that is served": (
        (
            Send(0, 0, "POST", (_POST.replace(_HOST, _HOST + b"X-Tag: 0\r\n"),), _HELD),
            Send(0, 1, "POST", (_POST,)),
            Send(0, 2, "", (_POST[:20],)),
        ),
        [b"HTTP/1.1 200 OK"] * 2,
    ),
    "line feeds alone": (
        (Send(0, 0, "POST", (_POST.replace(b"\r\n", b"\n"),)),),
        [b"HTTP/1.0 400 Bad Request"],
    ),
    "a version that is none": (
        (Send(0, 0, "POST", (_POST.replace(b"HTTP/1.1", b"http/1.1"),)),),
        [b"HTTP/1.0 400 Bad Request"],
    ),
    "a request behind an upgrade that nobody takes": (
        (Send(0, 0, "POST", (_H2C,)), Send(0, 1, "POST", (_POST,))),
        [b"HTTP/1.1 200 OK"],
    ),
    "the same in one piece": (
        (Send(0, 0, "POST", (_H2C + _POST,)),),
        [b"HTTP/1.1 200 OK"],
    ),
}
"""What random scripts found to differ, or to be wrong on both: actions, and the first lines of the
answers. The connection is closed at the end."""


@pytest.mark.parametrize("name", PINNED)
async def test_what_once_differed_does_not(name: str) -> None:
    actions, first_lines = PINNED[name]
    pinned = Script(Setup(), actions)
    assert not await lasting_differences(pinned)
    client = (await play(pinned, "fast")).clients[0]
    assert [answer.first_line for answer in client.answers] == first_lines
    assert plain_end(client) == "closed"


@pytest.fixture(autouse=True)
def _quick_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no setting must be short here too."""
    monkeypatch.setattr(lane_module, "SWEEP_S", 0.02)
    # Within a stillness: one lane may have paused reading, and see later who left.
    monkeypatch.setattr(sweep, "PERIOD_S", 2 * STILL_S)
    for module in (lane_module, server):
        monkeypatch.setattr(module, "LINGER_S", 0.3)
