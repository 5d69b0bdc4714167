"""Reading responses: the same answer however the bytes were cut, and no cut that looks whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.wire.answer_head import BadAnswerError, _parse_odd_lines, parse_lines
from lifeboat.wire.framing import MAX_HEAD_BYTES, ResponseReader
from lifeboat.wire.headers import RawHeaders

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(data: bytes, cuts: list[int] | None = None, *, is_head: bool = False) -> ResponseReader:
    reader = ResponseReader(is_head=is_head)
    edges = [0, *sorted(cuts or []), len(data)]
    for start, end in itertools.pairwise(edges):
        reader.feed(data[start:end])
    return reader


def body_of(reader: ResponseReader) -> bytes:
    return b"".join(reader.pieces)


WHOLE = {
    "content length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "no body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "chunked": (CHUNKED + b"5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n", b"hello world"),
    "chunked with trailers": (CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n", b"x"),
    "bare line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", b"hi"),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x"),
    "after a 100": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"x",
    ),
    "after a 103": (
        b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 201 Made\r\ncontent-length:1\r\n\r\nx",
        b"x",
    ),
    "length said twice alike": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\nContent-Length: 1\r\n\r\nx",
        b"x",
    ),
    "chunked wins over a length": (
        CHUNKED.replace(b"chunked", b"Chunked\r\nContent-Length: 99") + b"1\r\nx\r\n0\r\n\r\n",
        b"x",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_an_answer_reads_the_same_however_it_was_cut(name: str, data: st.DataObject) -> None:
    raw, body = WHOLE[name]
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    reader = read(raw, cuts)
    assert reader.done and not reader.excess
    assert body_of(reader) == body
    assert reader.buffered_bytes == len(body)


@given(pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=8), data=st.data())
def test_any_body_survives_chunking(pieces: list[bytes], data: st.DataObject) -> None:
    raw = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=12))
    reader = read(raw, cuts)
    assert reader.done
    assert body_of(reader) == b"".join(pieces)


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_without_its_last_byte_is_never_done(name: str) -> None:
    raw, _ = WHOLE[name]
    for length in range(len(raw)):
        reader = read(raw[:length])
        assert not reader.done
        with pytest.raises(BadAnswerError):
            reader.feed_eof()


def test_a_body_that_lasts_until_the_close_ends_with_the_close_only() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not reader.done
    reader.feed_eof()
    assert reader.done and body_of(reader) == b"abc"


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body_whatever_they_say(status: int) -> None:
    reader = read(b"HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\n" % status)
    assert reader.done and not reader.pieces


def test_the_answer_to_head_has_no_body_but_keeps_its_length() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", is_head=True)
    assert reader.done
    assert reader.head is not None and reader.head.headers == [(b"Content-Length", b"10")]


def test_bytes_after_the_end_are_told() -> None:
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy").excess
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\ny", is_head=True).excess


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: x\0y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: x\ry\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"1;a\rb\r\nx\r\n0\r\n\r\n",
        CHUNKED + b"1;a\0\r\nx\r\n0\r\n\r\n",
        CHUNKED + b"1\r\nxx\r\n",
        CHUNKED + b"1" * 9000,
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_no_valid_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(BadAnswerError):
        read(raw)


def test_headers_keep_their_bytes_order_spelling_and_duplicates() -> None:
    raw = (
        b"HTTP/1.1 200 Tr\xe9s bien\r\nSet-Cookie: a=1\r\nX-ODD:  caf\xe9 \r\nset-cookie: b=2\r\n"
        b"Folded: one\r\n two\r\nEmpty:\r\nContent-Length: 0\r\n\r\n"
    )
    head = read(raw).head
    assert head is not None
    assert head.reason == b"Tr\xe9s bien"
    assert head.headers == [
        (b"Set-Cookie", b"a=1"),
        (b"X-ODD", b"caf\xe9"),
        (b"set-cookie", b"b=2"),
        (b"Folded", b"one two"),
        (b"Empty", b""),
        (b"Content-Length", b"0"),
    ]


@pytest.mark.parametrize(
    ("raw", "keep_alive"),
    [
        (b"HTTP/1.1 204 X\r\n\r\n", True),
        (b"HTTP/1.1 204 X\r\nConnection: Close\r\n\r\n", False),
        (b"HTTP/1.1 204 X\r\nConnection: foo, close\r\n\r\n", False),
        (b"HTTP/1.0 204 X\r\n\r\n", False),
        (b"HTTP/1.0 204 X\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_whether_the_connection_may_go_on(raw: bytes, keep_alive: bool) -> None:
    head = read(raw).head
    assert head is not None and head.keep_alive is keep_alive


def test_taking_joins_small_pieces_up_to_the_size_asked_for() -> None:
    reader = read(CHUNKED + b"2\r\nab\r\n2\r\ncd\r\n2\r\nef\r\n0\r\n\r\n")
    assert [reader.take(4), reader.take(4), reader.take(4)] == [b"abcd", b"ef", b""]
    assert reader.buffered_bytes == 0


PIECES = [
    b"A",
    b"Name",
    b":",
    b": ",
    b" ",
    b"\t",
    b"\r",
    b"\0",
    b"x",
    b"\xe9",
    b"(",
    b"\r\nK: v",
    b"\n",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_header_lines_read_the_same_all_at_once_and_one_by_one(lines: bytes) -> None:
    block = b"First: 1\r\n" + lines + b"\r\n"

    def outcome(read: Callable[[], RawHeaders]) -> RawHeaders | str:
        try:
            return read()
        except BadAnswerError as refused:
            return str(refused)

    one_by_one = outcome(lambda: _parse_odd_lines(block.removesuffix(b"\n").split(b"\n")))
    assert outcome(lambda: parse_lines(block)) == one_by_one


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=6),
    tail=st.sampled_from(
        [b"", b"0\r\n\r\n", b"5\r\nab", b"3;x=y\r\nabc\r\n", b"zz\r\n", b"2\r\nabc"]
    ),
)
def test_whole_chunks_are_told_from_all_other_reads(pieces: list[bytes], tail: bytes) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + tail
    reader = read(CHUNKED)
    assert reader.whole_chunks(data) == (0 if tail else sum(map(len, pieces)))
    # It only looked: the same bytes are still to be read.
    if not tail:
        reader.feed(data)
        assert body_of(reader) == b"".join(pieces)


def test_chunks_behind_a_cut_or_before_what_waits_are_not_whole() -> None:
    chunk = b"2\r\nab\r\n"
    assert read(CHUNKED).whole_chunks(chunk) == 2
    assert read(CHUNKED + b"5\r\nhe").whole_chunks(chunk) == 0
    assert read(CHUNKED + b"2\r\nab").whole_chunks(chunk) == 0
    assert read(CHUNKED + b"2").whole_chunks(chunk) == 0
    assert read(CHUNKED + b"2\r\nab\r\n").whole_chunks(chunk) == 0
    assert read(b"HTTP/1.1 200 OK\r\n\r\n").whole_chunks(chunk) == 0
    assert read(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n").whole_chunks(chunk) == 0
    assert ResponseReader().whole_chunks(chunk) == 0
    again = read(CHUNKED + b"2\r\nab\r")
    again.feed(b"\n")
    again.take(100)
    assert again.whole_chunks(chunk) == 2


def test_a_chunk_of_any_length_is_told_from_its_neighbours() -> None:
    reader = read(CHUNKED)
    for size in [*range(1, 2100), 70_000]:
        piece = b"a" * size
        assert reader.whole_chunks(b"%x\r\n%b\r\n" % (size, piece)) == size
        assert reader.whole_chunks(b"%X\r\n%b\r\n" % (size, piece)) == size
        assert reader.whole_chunks(b"%x\r\n%ba\r\n" % (size, piece)) == 0
        assert reader.whole_chunks(b"%x\r\n%b\r\n" % (size + 1, piece)) == 0
        assert reader.whole_chunks(b"%x\r\n%b\n\r" % (size, piece)) == 0


@pytest.mark.parametrize(
    "line", [b"Content-Length: -1", b"Content-Length:", b"Transfer-Encoding: x"]
)
def test_a_head_whose_body_cannot_be_found_is_never_passed_on(line: bytes) -> None:
    reader = ResponseReader()
    with pytest.raises(BadAnswerError):
        reader.feed(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % line)
    assert reader.head is None
