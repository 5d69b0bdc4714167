"""Whatever bytes a client sends, in whatever pieces: the router stays well, and in step.

The laws: no exception, no error in the log; answers are HTTP to the letter; a backend is sent only
whole, well-framed requests, each of them one that the client's bytes hold by a second reading of
the RFC (tests/fuzz/reading.py), with that body, in that order, and never behind a fault; the
answers come in the order of the requests; every slot is given back. The budget: budget.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, example, given, note, target
from hypothesis import strategies as st

from tests.fuzz.budget import examples
from tests.fuzz.engine import Engine, Lanes, lanes_before_engines, tag_of
from tests.fuzz.reading import Message, Verdict, read_answers, read_requests
from tests.fuzz.request_grammar import chat, conversations
from tests.fuzz.stage import Client, Home, all_given_back, at_home, turns
from tests.running import CHAT, Running

ASKING_MORE = frozenset({b"expect", b"upgrade", b"content-encoding", b"te", b"trailer"})
"""Headers for which a valid request may be refused."""


@pytest.fixture(scope="module")
def home() -> Iterator[Home[Lanes]]:
    with at_home(lanes_before_engines) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Met:
    """What became of one connection."""

    answers: list[Message]
    asked: list[Message]
    end: str


async def meet(
    running: Running, engine: Engine, wire: tuple[bytes, ...], judged: list[Message], *, reset: bool
) -> Met:
    """Send a wire, wait for what must come, and until nothing moves, and leave."""
    engine.forget()
    client = await Client.connect(running.port)
    await client.send(*wire)
    methods = [one.method for one in judged]
    await client.answers(methods, count_readable(judged))
    if judged and judged[-1].verdict is Verdict.FAULTY:
        await client.answers(methods, 0, to_end=True)
    await client.still()
    end = client.end
    client.leave(reset=reset)
    await turns(3)
    await all_given_back(running)
    assert not engine.faults, engine.faults
    return Met(read_answers(bytes(client.came), methods, end), list(engine.asked), end)


def count_readable(judged: list[Message]) -> int:
    return sum(one.verdict in (Verdict.PLAIN, Verdict.ODD) for one in judged)


def must_be_served(one: Message) -> bool:
    """Say whether a request must reach the backend: everything about it is as it should be."""
    if one.verdict is not Verdict.PLAIN or (one.method, one.target) != ("POST", CHAT.encode()):
        return False
    if not ASKING_MORE.isdisjoint(name for name, _ in one.headers):
        return False
    if sum(len(name) + len(value) for name, value in one.headers) > 60_000:
        return False
    if len(one.headers) > 120 or len(one.values(b"content-type")) > 1:
        return False
    try:
        return json.loads(one.body)["model"] == "m"
    except (ValueError, TypeError, KeyError):
        return False


def check_passed_on(one: Message, answer: Message, asked: Message) -> None:
    """Hold what a backend was asked, and said, against the request."""
    assert one.verdict in (Verdict.PLAIN, Verdict.ODD), (one, asked)
    assert asked.method == one.method
    assert one.target in (asked.target, b""), (one, asked)  # b"": an odd request line
    assert asked.body == one.body, (one, asked)
    if b"x-tag" not in one.tokens(b"connection"):
        assert tag_of(asked) == tag_of(one)
    said = {"tag": tag_of(asked).decode("latin-1"), "size": len(one.body)}
    assert json.loads(answer.body) == said


def check(judged: list[Message], met: Met) -> None:
    """Hold what became of a connection against what was sent on it."""
    reached = iter(met.asked)
    for number, one in enumerate(judged):
        if number == len(met.answers):
            assert one.verdict is Verdict.CUT or (one.verdict is Verdict.FAULTY and met.end), one
            break
        answer = met.answers[number]
        assert answer.verdict is Verdict.PLAIN, answer
        if answer.backend:
            asked = next(reached, None)
            assert asked is not None, "an answer of a backend that was asked nothing"
            check_passed_on(one, answer, asked)
        else:
            assert not must_be_served(one), (one, answer)
        if answer.closes or one.closes or one.verdict is Verdict.FAULTY:
            # What cannot be parsed has no method to the parser: HEAD gets an error's body, too.
            is_head = one.method == "HEAD" and answer.status == 400
            assert is_head or number + 1 == len(met.answers), "an answer behind the last one"
            # A body that is refused unread is waited for, a while.
            assert met.end or one.verdict is Verdict.CUT, "the connection goes on behind its end"
            break
    else:
        assert len(met.answers) == len(judged), "more answers than requests"
    assert next(reached, None) is None, "a backend was sent what no answer came back for"


def plain(tag: int) -> bytes:
    return chat(tag).written()


def whole_but_for_its_end() -> bytes:
    draft = chat(1)
    wire = b"%x\r\n%b\r0\r\n\r\n" % (len(draft.wire), draft.wire)
    return replace(draft, framing=(b"Transfer-Encoding: chunked",), wire=wire).written()


@given(wire=conversations(), reset=st.booleans())
@example(wire=(plain(1) + b"nonsense\r\n\r\n",), reset=False)
@example(wire=(whole_but_for_its_end(),), reset=False)
@examples(400)
def test_whatever_a_client_sends_the_router_is_well_and_in_step(
    home: Home[Lanes], wire: tuple[bytes, ...], reset: bool
) -> None:
    judged = read_requests(b"".join(wire))
    readable = count_readable(judged)
    statuses: dict[str, list[tuple[int, bytes]]] = {}
    for lane, (running, engine) in home.scene.items():
        met = home.run(meet(running, engine, wire, judged, reset=reset))
        note(f"{lane}: {wire} became {met}")
        check(judged, met)
        statuses[lane] = [(answer.status, answer.backend) for answer in met.answers[:readable]]
    one, other = statuses.values()
    assert one == other
    event(f"{len(one)} answers, the last judged {judged[-1].verdict.name if judged else None}")
    target(float(len(one)))
