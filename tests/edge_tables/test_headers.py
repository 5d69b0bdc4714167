"""The header table in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.vocabulary import Priority
from lifeboat.edge.headers import (
    answer_facts,
    client_headers,
    deadline_of,
    facts_of,
    header_text,
    presented_keys,
    priority_of,
    request_id_of,
    sane_request_id,
    upstream_headers,
)
from lifeboat.wire.answer_head import parse_head
from lifeboat.wire.downstream import ClientLines
from lifeboat.wire.headers import Headers, header_block
from lifeboat.wire.upstream import Target, head_start

HOP = [
    (b"Connection", b"close, X-Secret"),
    (b"connection", b"X-Other"),
    (b"X-Secret", b"1"),
    (b"X-Other", b"2"),
    (b"TE", b"trailers"),
    (b"Trailer", b"X"),
    (b"Keep-Alive", b"timeout=5"),
    (b"Proxy-Authorization", b"x"),
    (b"Proxy-Connection", b"keep-alive"),
    (b"Transfer-Encoding", b"chunked"),
    (b"Upgrade", b"h2c"),
    (b"HTTP2-Settings", b"x"),
]
FORGED = [(b"X-Lifeboat-Wait-ms", b"0"), (b"x-lifeboat-priority", b"high")]


def up(headers: list[tuple[bytes, bytes]], **changes: Any) -> list[tuple[bytes, bytes]]:
    given: dict[str, Any] = {
        "target": Target("b", "http://10.0.0.1:8000/v1"),
        "request_id": "r-1",
        "body_length": 2,
    }
    return upstream_headers(headers, **(given | changes))


def down(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return client_headers(headers, wait_ms=12, backend="b", attempts=2, request_id="r-1")


OURS = [
    (b"X-Lifeboat-Wait-ms", b"12"),
    (b"X-Lifeboat-Backend", b"b"),
    (b"X-Lifeboat-Attempts", b"2"),
    (b"X-Request-ID", b"r-1"),
]


def test_the_backend_sees_what_the_client_sent_and_nothing_invented() -> None:
    """BUG-130: no Accept, Accept-Encoding, User-Agent or Content-Type of our own."""
    assert up([(b"host", b"router.test"), (b"X-A", b"\xe9"), (b"x-a", b"2")]) == [
        (b"Host", b"10.0.0.1:8000"),
        (b"X-A", b"\xe9"),
        (b"x-a", b"2"),
        (b"X-Forwarded-Host", b"router.test"),
        (b"X-Forwarded-Proto", b"http"),
        (b"X-Request-ID", b"r-1"),
        (b"Content-Length", b"2"),
    ]


def test_hop_by_hop_headers_stop_here_in_both_directions() -> None:
    """BUG-129."""
    kept = [(b"X-Kept", b"1")]
    names = {name for name, _ in up(HOP + FORGED + kept)}
    assert names == {b"Host", b"X-Kept", b"X-Forwarded-Proto", b"X-Request-ID", b"Content-Length"}
    assert down(HOP + FORGED + kept) == kept + OURS


def test_expect_and_old_lengths_never_go_upstream() -> None:
    """BUG-058, BUG-060, BUG-061."""
    sent = [(b"Expect", b"100-continue"), (b"Content-Length", b"9"), (b"content-length", b"9")]
    lengths = [value for name, value in up(sent) if name.lower() == b"content-length"]
    assert lengths == [b"2"]
    assert not [name for name, _ in up(sent) if name.lower() == b"expect"]
    assert not [name for name, _ in up(sent, body_length=None) if name.lower() == b"content-length"]
    assert (b"Content-Length", b"0") in up(sent, body_length=0)


def test_a_proxy_before_us_keeps_its_word_and_we_join_the_chain() -> None:
    before = [
        (b"Host", b"router"),
        (b"X-Forwarded-Host", b"public.example"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-For", b"1.1.1.1"),
        (b"x-forwarded-for", b"2.2.2.2"),
    ]
    out = up(before, client_address="3.3.3.3")
    assert [header for header in out if header[0].lower().startswith(b"x-forwarded")] == [
        (b"X-Forwarded-Host", b"public.example"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-For", b"1.1.1.1, 2.2.2.2, 3.3.3.3"),
    ]


CREDENTIALS = [(b"Authorization", b"Bearer client"), (b"X-Api-Key", b"client")]


@pytest.mark.parametrize(
    ("api_key", "router_keys", "sent", "arrives"),
    [
        (None, False, CREDENTIALS, CREDENTIALS),
        (None, True, CREDENTIALS, []),
        ("", False, CREDENTIALS, []),
        ("", True, CREDENTIALS, []),
        ("k", False, CREDENTIALS, [(b"Authorization", b"Bearer k"), (b"x-api-key", b"k")]),
        ("k", True, CREDENTIALS[:1], [(b"Authorization", b"Bearer k")]),
        ("k", False, [], [(b"Authorization", b"Bearer k")]),
    ],
)
def test_whose_credentials_the_backend_sees(
    api_key: str | None,
    router_keys: bool,
    sent: list[tuple[bytes, bytes]],
    arrives: list[tuple[bytes, bytes]],
) -> None:
    """BUG-126, BUG-127: a router key never leaves; an empty backend key sends none."""
    target = Target("b", "http://h", api_key)
    out = up(sent, target=target, router_keys_configured=router_keys)
    assert [h for h in out if h[0].lower() in (b"authorization", b"x-api-key")] == arrives


def test_duplicates_keep_their_count_and_order_on_the_way_back() -> None:
    """BUG-120, BUG-121."""
    answer = [(b"Set-Cookie", b"%d" % number) for number in range(5)]
    answer += [(b"WWW-Authenticate", b"a"), (b"Link", b"x"), (b"www-authenticate", b"b")]
    assert down(answer) == answer + OURS


def test_length_and_coding_stay_as_the_backend_said_unless_it_chunked() -> None:
    plain = [(b"Content-Length", b"5"), (b"Content-Encoding", b"gzip")]
    assert down(plain) == plain + OURS
    assert down([*plain, (b"Connection", b"content-length")]) == plain + OURS
    assert down([*plain, (b"Transfer-Encoding", b"chunked")]) == [plain[1], *OURS]


def test_the_router_alone_speaks_in_its_name() -> None:
    """BUG-132."""
    forged = [(b"x-lifeboat-backend", b"evil"), (b"X-Request-Id", b"theirs")]
    assert down(forged) == OURS


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"req-1", True),
        ("Root=1-67891233-abcdef", True),
        (b"x" * 128, True),
        (None, False),
        (b"", False),
        (b"x" * 129, False),
        (b"x" * 5000, False),
        (b"a b", False),
        (b"a\r\nX-Evil: 1", False),
        (b"a\nb", False),
        (b"caf\xe9", False),
        ("\ud800", False),
        ("naïve", False),
    ],
)
def test_a_request_id_is_the_clients_if_it_is_sane(given: bytes | str | None, kept: bool) -> None:
    """BUG-133."""
    result = sane_request_id(given, lambda: "fresh")
    if kept:
        assert result == (given.decode() if isinstance(given, bytes) else given)
    else:
        assert result == "fresh"


def test_the_first_request_id_counts() -> None:
    assert request_id_of([(b"x-request-id", b"1"), (b"X-Request-ID", b"2")], lambda: "f") == "1"
    assert request_id_of([], lambda: "f") == "f"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (Priority.NORMAL, True)),
        ([b"high"], (Priority.HIGH, True)),
        ([b" LOW "], (Priority.LOW, True)),
        ([b"normal"], (Priority.NORMAL, True)),
        ([b"urgent"], (Priority.NORMAL, False)),
        ([b""], (Priority.NORMAL, False)),
        ([b"high", b"High"], (Priority.HIGH, True)),
        ([b"high", b"low"], (Priority.NORMAL, False)),
        ([b"\xff"], (Priority.NORMAL, False)),
    ],
)
def test_the_priority_asked_for(values: list[bytes], expected: tuple[Priority, bool]) -> None:
    assert priority_of([(b"x-lifeboat-PRIORITY", value) for value in values]) == expected


def test_the_keys_a_client_shows() -> None:
    headers = [
        (b"authorization", b"bearer  one"),
        (b"Authorization", b"Basic two"),
        (b"X-API-Key", b"three"),
    ]
    assert presented_keys(headers) == (b"one", b"three")


def test_no_name_can_forge_a_header_line() -> None:
    assert header_text("a\r\nX: y\x00\x7f") == b"a??X: y??"
    assert header_text("\ud800") == b"?"
    assert header_text("bücher") == "bücher".encode()


@pytest.mark.parametrize(
    ("values", "deadline_s"),
    [
        ([], None),
        ([b"1500"], 1.5),
        ([b" 0 "], 0.0),
        ([b"-5"], None),
        ([b"1.5"], None),
        ([b"soon"], None),
        ([b""], None),
        ([b"9" * 40], None),
        ([b"100", b"200"], None),
    ],
)
def test_the_deadline_of_a_client(values: list[bytes], deadline_s: float | None) -> None:
    assert deadline_of([(b"x-lifeboat-DEADLINE-ms", value) for value in values]) == deadline_s


LINES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                b"Host", b"Content-Type", b"X-Forwarded-For", b"X-Forwarded-Host",
                b"x-forwarded-proto", b"Connection", b"Authorization", b"x-api-key",
                b"X-Request-ID",
                b"X-Lifeboat-Priority", b"TE", b"X-Custom", b"Content-Length", b"Date",
                b"Transfer-Encoding",
            ]
        ),
        st.sampled_from([b"a", b"x-custom", b"X-Forwarded-For, close", b"chunked", b"5", b"\xe9"]),
    ),
    max_size=8,
)  # fmt: skip


@given(
    lines=LINES,
    api_key=st.sampled_from([None, "", "own"]),
    router_keys=st.booleans(),
    address=st.sampled_from([None, "10.0.0.9"]),
    length=st.sampled_from([None, 0, 12]),
)
def test_a_head_kept_written_is_what_the_table_says(
    lines: list[tuple[bytes, bytes]],
    api_key: str | None,
    router_keys: bool,
    address: str | None,
    length: int | None,
) -> None:
    facts = facts_of(Headers(lines))
    targets = [
        Target("b", "http://h:1", api_key),
        Target("b", "http://h:2"),
        Target("c", "http://h:1"),
    ]
    for keys in (router_keys, not router_keys):
        for target in targets * 2:
            for request_id in ("r-1", "r-2"):
                table = upstream_headers(
                    lines,
                    target=target,
                    request_id=request_id,
                    body_length=length,
                    router_keys_configured=keys,
                    client_address=address,
                )
                written = facts.upstream_head(
                    target,
                    "POST",
                    "/v1/x?y",
                    request_id=request_id,
                    body_length=length,
                    router_keys_configured=keys,
                    client_address=address,
                    client_scheme="http",
                )
                assert written == head_start(target, "POST", "/v1/x?y", table) + b"\r\n"


@given(
    lines=LINES,
    more=st.lists(st.sampled_from([b"1", b"22", b"Tue, 2 Dec"]), min_size=3, max_size=3),
)
def test_an_answers_lines_kept_written_are_what_the_table_says(
    lines: list[tuple[bytes, bytes]], more: list[bytes]
) -> None:
    for value in more:
        told = [
            (name, value if name in (b"Date", b"Content-Length") else old) for name, old in lines
        ]
        head = parse_head(b"HTTP/1.1 200 OK\r\n" + header_block(told)[:-1])
        if [name for name, _ in told].count(b"Content-Length") < 2:
            assert head.headers == told
        written = answer_facts(head.form).client_lines(
            head.values, wait_ms=12, backend="b", attempts=2, request_id="r-1"
        )
        # A length that was said twice is said once there.
        assert written == ClientLines.of(down(head.headers))


def test_what_looks_like_a_hole_in_an_answers_lines_is_passed_on() -> None:
    told = [(b"Date", b"now"), (b"X-Odd", b"\x010\x01"), (b"Content-Length", b"2")]
    head = parse_head(b"HTTP/1.1 200 OK\r\n" + header_block(told)[:-1])
    written = answer_facts(head.form).client_lines(
        head.values, wait_ms=12, backend="b", attempts=2, request_id="r-1"
    )
    assert written == ClientLines.of(down(told))
