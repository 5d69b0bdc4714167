"""Whatever bytes a backend answers, in whatever pieces: the client is told the truth.

The laws: an answer that is whole reaches the client whole (status, reason's place, body, headers);
one that is not, or cannot be read, is a failure that a client can tell from an answer: an error of
the router's own, or a cut; what a backend says too much is never an answer to the next request; the
log holds no error and every slot is given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import event, example, given, note
from hypothesis import strategies as st

from tests.fuzz.answer_grammar import Reply, replies
from tests.fuzz.budget import examples
from tests.fuzz.engine import Engine, Lanes, Says, echo, lanes_before_engines, tag_of
from tests.fuzz.reading import CONTROL, HeaderLines, Message, Verdict, read_answers
from tests.fuzz.request_grammar import chat
from tests.fuzz.stage import Client, Home, all_given_back, at_home
from tests.running import Running

OUR_FAILURES = frozenset({502, 503, 504})


@pytest.fixture(scope="module")
def home() -> Iterator[Home[Lanes]]:
    with at_home(lanes_before_engines) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Met:
    """What the client saw. asked_on: the engine's connections, in order of the requests."""

    first: Message | None
    end: str
    second: list[Message]
    asked_on: list[int]


async def meet(running: Running, engine: Engine, reply: Reply, *, is_old: bool) -> Met:
    """Ask for the scripted answer, then for an ordinary one."""
    engine.forget()
    says = Says(reply.pieces, reply.end or stay(reply.wire))
    engine.answer = lambda asked: says if tag_of(asked) == b"1" else echo(asked)
    client = await Client.connect(running.port)
    wire = chat(1).written()
    await client.send(wire.replace(b"HTTP/1.1", b"HTTP/1.0", 1) if is_old else wire)
    await client.answers(["POST"], 1)
    await client.still()
    first, end = read_answers(bytes(client.came), ["POST"], client.end), client.end
    assert len(first) <= 1, first
    client.leave()
    await all_given_back(running)
    another = await Client.connect(running.port)
    await another.send(chat(2).written())
    await another.answers(["POST"], 1)
    second = read_answers(bytes(another.came), ["POST"], "")
    another.leave()
    await all_given_back(running)
    assert not engine.faults, engine.faults
    return Met(first[0] if first else None, end, second, list(engine.connections))


def stay(wire: bytes) -> str:
    """Say how a backend ends that would rather stay: it may, behind what is whole without."""
    said = read_answers(wire, ["POST"], "")
    return "" if said[:1] and said[0].verdict is Verdict.PLAIN else "closed"


def marks(headers: HeaderLines) -> HeaderLines:
    return [line for line in headers if line[0] == b"x-e"]


def check(said: Message | None, met: Met) -> None:
    """Hold what a client saw against what the backend said."""
    seen = met.first
    if is_failure(seen, met.end):
        assert said is None or said.verdict is not Verdict.PLAIN, (said, seen)
        if seen is not None and seen.backend:
            assert said is not None
            assert said.body.startswith(seen.body)
        return
    assert seen is not None
    assert seen.verdict is Verdict.PLAIN or seen.why == CONTROL or seen.status == 204, seen
    assert said is not None, seen
    assert said.verdict in (Verdict.PLAIN, Verdict.ODD), (said, seen)
    assert (seen.status, seen.body) == (said.status, said.body)
    if b"x-e" not in said.tokens(b"connection"):
        assert marks(seen.headers) == marks(said.headers)


def is_failure(seen: Message | None, end: str) -> bool:
    """Say whether a client can tell that it has no whole answer."""
    if seen is None or seen.verdict is Verdict.CUT:
        assert end, "nothing, and for ever"
        return True
    return not seen.backend and seen.status in OUR_FAILURES


NO_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nabc"


@given(reply=replies(), is_old=st.sampled_from((False, False, True)))
@example(reply=Reply(NO_LENGTH, [NO_LENGTH], "closed"), is_old=False)
@examples(300)
def test_whatever_a_backend_answers_the_client_is_told_the_truth(
    home: Home[Lanes], reply: Reply, is_old: bool
) -> None:
    end = reply.end or stay(reply.wire)
    heard = read_answers(reply.wire, ["POST"], end)
    said = heard[0] if heard else None
    if said is not None and end == "reset" and said.verdict is Verdict.PLAIN:
        said.odd("a reset may overtake what was sent before it")
    for lane, (running, engine) in home.scene.items():
        met = home.run(meet(running, engine, reply, is_old=is_old))
        note(f"{lane}: {reply.pieces} then {end!r}, read as {said}, became {met}")
        check(said, met)
        assert [(one.status, one.backend) for one in met.second] == [(200, b"a")]
        assert met.second[0].body == b'{"tag": "2", "size": 64}'
        if len(heard) != 1 or (said is not None and said.closes):
            assert met.asked_on[-1] != met.asked_on[-2], "a connection that is out of step"
    event(said.verdict.name if said else "nothing")
