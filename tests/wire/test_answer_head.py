"""Answer heads that are remembered: every one reads as if it were the first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.wire import answer_head
from lifeboat.wire.answer_head import BadAnswerError, BodyEnd, ResponseHead, parse_head

NAMES = st.sampled_from(
    [b"Content-Length", b"content-length", b"CONTENT-LENGTH", b"Date", b"date", b"X-A", b"Server"]
)
VALUES = st.sampled_from(
    [
        b"0",
        b"12",
        b"12 ",
        b" 7",
        b"",
        b"5, 5",
        b"x",
        b"a\x01b",
        b"\x010\x01",
        b"Mon, 1 Dec",
        b"\xe9",
    ]
)
LINES = st.lists(
    st.one_of(
        st.tuples(NAMES, VALUES).map(b": ".join),
        st.tuples(NAMES, VALUES).map(b":".join),
        st.sampled_from(
            [
                b"Transfer-Encoding: chunked", b"Connection: close", b" folded", b"Date : x",
                b"A\x01Date\x01B: c", b"Date\x01: y",
            ]
        ),
    ),
    max_size=5,
)  # fmt: skip
STATUS = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 204 \x01", b"HTTP/1.1 404 no"]
)
ENDS = st.sampled_from([b"\r\n", b"\n"])


def told(block: bytes) -> object:
    """Everything a head says, or that it is none."""
    try:
        head = parse_head(block)
        return head.status, head.reason, head.keep_alive, list(head.headers), body_told(head)
    except BadAnswerError:
        return BadAnswerError


def body_told(head: ResponseHead) -> object:
    try:
        return head.body()
    except BadAnswerError as error:
        return str(error)


@given(heads=st.lists(st.tuples(STATUS, LINES, ENDS), min_size=1, max_size=12))
def test_a_head_says_the_same_whatever_came_before_it(
    heads: list[tuple[bytes, list[bytes], bytes]],
) -> None:
    blocks = [end.join([status, *lines]) for status, lines, end in heads]
    alone: list[object] = []
    for block in blocks:
        answer_head._forms.clear()
        alone.append(told(block))
    answer_head._forms.clear()
    assert [told(block) for block in blocks] == alone
    # And once more, when all that can be remembered is.
    assert [told(block) for block in blocks] == alone


def test_heads_that_differ_in_date_and_length_share_a_form() -> None:
    answer_head._forms.clear()
    first, second = (
        parse_head(b"HTTP/1.1 200 OK\r\nDate: %b\r\nX: y\r\nContent-Length: %d\r" % values)
        for values in ((b"Mon", 3), (b"Tue", 14))
    )
    assert first.form is second.form
    assert second.headers == [(b"Date", b"Tue"), (b"X", b"y"), (b"Content-Length", b"14")]
    assert (first.body(), second.body()) == ((BodyEnd.LENGTH, 3), (BodyEnd.LENGTH, 14))


def test_what_is_remembered_is_bounded() -> None:
    answer_head._forms.clear()
    for number in range(answer_head.MOST_FORMS + 50):
        parse_head(b"HTTP/1.1 200 OK\r\nX: %d\r" % number)
    parse_head(b"HTTP/1.1 200 OK\r\nX: " + b"y" * answer_head.MOST_FORM_BYTES + b"\r")
    assert len(answer_head._forms) == answer_head.MOST_FORMS


@pytest.mark.parametrize("length", [b"-1", b"1 2", b"0x10", b"", b"5, 6", b"9" * 19])
def test_a_length_that_is_none_is_refused_though_its_form_is_known(length: bytes) -> None:
    block = b"HTTP/1.1 200 OK\r\nContent-Length: %b\r"
    assert parse_head(block % b"5").body() == (BodyEnd.LENGTH, 5)
    with pytest.raises(BadAnswerError):
        parse_head(block % length).body()


@pytest.mark.parametrize(
    "said",
    [b"Content-Length: 5, 5", b"Content-Length: 5\r\nX: y\r\ncontent-length: 5",
     b"CONTENT-LENGTH: 5,5", b"Content-Length: 5\r\nContent-Length:"],
)  # fmt: skip
def test_a_length_that_was_said_twice_is_passed_on_once(said: bytes) -> None:
    """RFC 9112, section 6.3, rule 5: a client may refuse the two."""
    for block in (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r", b"HTTP/1.1 200 OK\r\n%b\r" % said):
        head = parse_head(block)
    assert head.body() == (BodyEnd.LENGTH, 5)
    assert head.headers.values(b"content-length") == [b"5"]


@pytest.mark.parametrize("stray", [b"\r", b"\0"])
def test_a_reason_never_holds_what_ends_a_line(stray: bytes) -> None:
    """A client that takes a bare CR for a line end would find a header of the reason's making."""
    with pytest.raises(BadAnswerError):
        parse_head(b"HTTP/1.1 200 OK%bX: y\r\nA: b\r" % stray)


def test_a_head_that_spells_a_forms_own_marks_is_read_for_itself() -> None:
    answer_head._forms.clear()
    parse_head(b"HTTP/1.1 200 OK\nDate: Mon\nX: y\r")
    odd = parse_head(b"HTTP/1.1 200 OK\x01Date\x01\nX: y\r")
    assert odd.status == 200 and odd.headers == [(b"X", b"y")]
