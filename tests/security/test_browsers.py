"""What a web page that an operator looks at may not do: cross-site calls, DNS rebinding.

Over raw sockets: a client library would write a Host of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.peers import RawClient, Reply
from tests.running import Running, backend, backends_yaml, running_router
from tests.security.changes import CHANGES

MODE = json.dumps({"mode": "superfast"}).encode()
NOBODY = backends_yaml(backend("http://127.0.0.1:9"))
SESAME = b"Authorization: Bearer sesame"


async def put_mode(running: Running, *headers: bytes) -> Reply:
    """Send the change with exactly these headers and `{port}` filled in."""
    port = str(running.port).encode()
    lines = [
        b"PUT /api/lb/mode HTTP/1.1",
        *(header.replace(b"{port}", port) for header in headers),
        b"Content-Length: %d" % len(MODE),
    ]
    client = await RawClient.connect(running.port)
    await client.send(b"\r\n".join(lines) + b"\r\n\r\n" + MODE)
    reply = await client.reply()
    client.close()
    return reply


async def changed(running: Running) -> bool:
    return (await running.state())["routing_mode"] == "superfast"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        # This machine's own names, whatever the port: a tunnel has another.
        ((b"Host: 127.0.0.1:{port}",), 200),
        ((b"Host: 127.0.0.1",), 200),
        ((b"Host: 127.8.8.8:1",), 200),
        ((b"Host: localhost:{port}",), 200),
        ((b"Host: LOCALHOST",), 200),
        ((b"Host: localhost.:9000",), 200),
        ((b"Host: router.localhost",), 200),
        ((b"Host: [::1]:{port}",), 200),
        # A name that somebody else points here.
        ((b"Host: evil.example:{port}",), 403),
        ((b"Host: localhost.evil.example",), 403),
        ((b"Host: 127.0.0.1.evil.example",), 403),
        ((b"Host: notlocalhost",), 403),
        ((b"Host: 192.168.1.7:{port}",), 403),
        ((b"Host: [::2]",), 403),
        ((b"Host: ",), 403),
        # No HTTP/1.1 without one: refused before anybody looks at it.
        ((), 400),
        # Under that name a page is even "of the same site".
        ((b"Host: evil.example:{port}", b"Origin: http://evil.example:{port}"), 403),
        # The dashboard itself.
        ((b"Host: 127.0.0.1:{port}", b"Origin: http://127.0.0.1:{port}"), 200),
        ((b"Host: localhost", b"Origin: http://localhost"), 200),
        ((b"Host: localhost", b"Origin: http://LOCALHOST:80"), 200),
        # Somebody else's page, also one of another server on this machine.
        ((b"Host: 127.0.0.1:{port}", b"Origin: http://evil.example"), 403),
        ((b"Host: 127.0.0.1:{port}", b"Origin: http://127.0.0.1:3000"), 403),
        ((b"Host: 127.0.0.1:{port}", b"Origin: http://localhost:{port}"), 403),
        ((b"Host: 127.0.0.1:{port}", b"Origin: null"), 403),
        ((b"Host: 127.0.0.1:{port}", b"Origin: "), 403),
        ((b"Host: 127.0.0.1:{port}", b"Origin: 127.0.0.1:{port}"), 403),
        (
            (
                b"Host: 127.0.0.1:{port}",
                b"Origin: http://127.0.0.1:{port}",
                b"Origin: http://evil.example",
            ),
            403,
        ),
    ],
    ids=lambda value: b" ".join(value).decode() if isinstance(value, tuple) else str(value),
)
async def test_without_a_token_a_change_comes_under_this_machines_name_and_from_no_other_page(
    tmp_path: Path, headers: tuple[bytes, ...], status: int
) -> None:
    async with running_router(NOBODY, tmp_path) as running:
        reply = await put_mode(running, *headers)
        assert reply.status == status, reply.body
        assert await changed(running) is (status == 200)
        if status == 403:
            assert json.loads(reply.body)["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        # With a token the name does not matter: a page has no token.
        ((b"Host: lifeboat.example", SESAME), 200),
        ((b"Host: evil.example",), 401),
        # Behind a proxy that ends TLS and passes on the Host.
        ((b"Host: lifeboat.example", b"Origin: https://lifeboat.example", SESAME), 200),
        ((b"Host: lifeboat.example:443", b"Origin: https://lifeboat.example", SESAME), 200),
        ((b"Host: lifeboat.example:8443", b"Origin: https://lifeboat.example:8443", SESAME), 200),
        ((b"Host: lifeboat.example", b"Origin: https://lifeboat.example:8443", SESAME), 403),
        ((b"Host: lifeboat.example", b"Origin: https://evil.example", SESAME), 403),
        ((b"Host: lifeboat.example", b"Origin: null", SESAME), 403),
    ],
    ids=lambda value: b" ".join(value).decode() if isinstance(value, tuple) else str(value),
)
async def test_with_a_token_any_name_will_do_but_no_other_sites_page(
    tmp_path: Path, headers: tuple[bytes, ...], status: int
) -> None:
    environ = {"LIFEBOAT_ADMIN_TOKEN": "sesame"}
    async with running_router(NOBODY, tmp_path, environ) as running:
        assert (await put_mode(running, *headers)).status == status
        assert await changed(running) is (status == 200)


async def test_the_name_that_is_listened_on_is_this_machines_own(tmp_path: Path) -> None:
    async with running_router(NOBODY, tmp_path, host="0.0.0.0") as running:
        assert (await put_mode(running, b"Host: 0.0.0.0:{port}")).status == 200
        assert (await put_mode(running, b"Host: 0.0.0.1:{port}")).status == 403


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_no_changing_call_is_taken_from_another_sites_page(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    async with running_router(NOBODY, tmp_path) as running:
        before = (await running.state())["backends"].keys()
        # What a form of another site can send: no preflight, a type that asks for none.
        headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
        refused = await running.ask(f"/api/lb/{path}", body, method=method, headers=headers)
        assert refused.status == 403
        assert "Origin" in refused.error["message"]
        assert (await running.state())["backends"].keys() == before


async def test_nothing_invites_other_sites_to_read_or_to_ask(tmp_path: Path) -> None:
    async with running_router(NOBODY, tmp_path) as running:
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
        for path in ("/", "/api/lb/state", "/api/lb/mode", "/api/lb/backends/a", "/metrics"):
            for method in ("GET", "OPTIONS"):
                answer = await running.ask(path, method=method, headers=headers)
                assert answer.status == (405 if method == "OPTIONS" or "/a" in path[-2:] else 200)
                assert not [name for name in answer.headers if name.lower().startswith("access-")]
