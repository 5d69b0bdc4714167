"""Reaching backends: addresses, prefixes, names that move, certificates; no proxy in between."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import lifeboat.fleet.inquiry
from lifeboat.cli.process import announce
from tests.conformance.lanes import (
    COMPLETION,
    LANES,
    LAST_CHUNK,
    SSE_HEAD,
    Engine,
    Lane,
    answer,
    chat,
    event,
    says_hello,
)
from tests.conformance.probed import FAST
from tests.peers import Peer, RawClient, Received, ScriptedBackend
from tests.running import CHAT, backend, backends_yaml, running_router


def at(engine: Engine, host: str) -> Engine:
    """Have an engine listen elsewhere than on 127.0.0.1."""
    engine._host = host
    return engine


# ---- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
async def test_bug_199_an_ipv6_literal_is_bracketed_wherever_it_is_shown(
    lane: Lane, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with at(Engine(says_hello), "::1") as engine:
        url = f"http://[::1]:{engine.port}"
        async with lane.router({"url": url, "kind": kind}) as running:
            answered = await running.ask()
            assert answered.status == 200
            host = f"[::1]:{engine.port}".encode()
            assert {tuple(one.values(b"host")) for one in engine.asked} == {(host,)}
            assert {tuple(one.values(b"host")) for one in engine.probes} == {(host,)}
            state = await running.state()
            (name,) = state["backends"]
            assert state["backends"][name]["url"] == url
            announce(running.router)
            assert url in capsys.readouterr().out
            # A name made of the address is one that labels and paths can carry.
            assert answered.headers["X-Lifeboat-Backend"] == name
            assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
            patched = await running.admin("PATCH", f"backends/{name}", {"max_concurrency": 3})
            assert patched.status == 200


async def test_bug_199_without_brackets_it_is_refused_at_the_start(
    lane: Lane, tmp_path: Path
) -> None:
    for url in ("http://::1:8000", "http://fe80::1", "http://[::1", "http://[1.2.3.4]:80"):
        with pytest.raises(Exception, match=r"url"):
            async with lane.router(backend(url)):
                pass


@pytest.mark.parametrize(
    ("suffix", "prefix"),
    [
        ("", ""), ("/", ""), ("/v1", ""), ("/v1/", ""), ("/prefix", "/prefix"),
        ("/prefix/", "/prefix"), ("/prefix/v1", "/prefix"), ("/prefix/v1/", "/prefix"),
        ("/a/b", "/a/b"), ("/v1/v1", ""), ("/v10", "/v10"), ("/api/v1beta", "/api/v1beta"),
        ("//", ""),
    ],
)  # fmt: skip
async def test_bug_201_the_join_rule_makes_no_double_v1_and_no_double_slash(
    lane: Lane, suffix: str, prefix: str
) -> None:
    targets = [CHAT, f"{CHAT}?a=1&b=%2F%20x", "/v1/messages?beta=true", CHAT]
    async with Engine(says_hello) as engine:
        async with lane.router({"name": "a", "url": engine.url + suffix}) as running:
            client = await RawClient.connect(running.port)
            for target in targets:
                await client.post(target, chat())
                assert (await client.reply()).status == 200
            client.close()
            assert [one.target for one in engine.asked] == [prefix + one for one in targets]
            assert {one.target for one in engine.probes} == {f"{prefix}/v1/models"}


async def stripping(target: int, prefix: bytes, reader, writer) -> None:
    """A front proxy that takes a prefix off the path and passes all bytes on."""
    head = await reader.readuntil(b"\r\n\r\n")
    there, out = await asyncio.open_connection("127.0.0.1", target)
    first, _, rest = head.partition(b"\r\n")
    method, path, version = first.split(b" ")
    assert path.startswith(prefix)
    path = path.removeprefix(prefix) or b"/"
    out.write(b" ".join((method, path, version)) + b"\r\nConnection: close\r\n" + rest)
    body = asyncio.create_task(_pump(reader, out))
    await _pump(there, writer)
    body.cancel()
    out.close()
    writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()


async def test_bug_202_behind_a_proxy_that_strips_a_prefix_everything_is_reachable(
    lane: Lane,
) -> None:
    async with lane.facing(says_hello) as stage:
        port = stage.running.port

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stripping(port, b"/llm", reader, writer)

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as front:
            base = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}/llm"
            async with aiohttp.ClientSession() as session:
                for path in ("/metrics", "/api/lb/state", "/v1/models", "/health", "/ready"):
                    async with session.get(base + path) as answered:
                        assert answered.status == 200, path
                async with session.post(base + CHAT, data=chat()) as answered:
                    assert answered.status == 200
                async with session.get(f"{base}/") as answered:
                    assert answered.status == 200
                    html = await answered.text()
                links = re.findall(r'(?:href|src)="([^"#]+)"', html)
                assert links
                for link in links:
                    # Relative: a link from the root would leave the prefix.
                    assert not link.startswith(("/", "http:")), link
                    async with session.get(f"{base}/{link}") as answered:
                        assert answered.status == 200, link
        static = Path(lifeboat.__file__).parent / "web" / "static"
        for script in static.glob("*.js"):
            assert not re.search(r"""["'`]/(api|static|metrics|v1)\b""", script.read_text()), script


async def test_bug_202_a_prefix_that_is_kept_is_an_unknown_path_said_in_json(lane: Lane) -> None:
    async with lane.facing(says_hello) as stage:
        for method, path in (("POST", f"/llm{CHAT}"), ("GET", "/llm/metrics"), ("GET", "/llm/")):
            answered = await stage.running.ask(path, method=method)
            assert answered.status == 404
            assert answered.error["code"]
        assert not stage.asked


# ---- names that move -----------------------------------------------------------------------------


async def test_bug_204_a_name_that_moves_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On asyncio's own loop, whose resolver can be replaced: uvloop asks the system itself."""
    monkeypatch.setattr(lifeboat.fleet.inquiry, "RESOLVED_FOR_S", 0.05)
    monkeypatch.setattr(lifeboat.fleet.inquiry, "IDLE_S", 0.02)
    real = socket.getaddrinfo
    address = "127.0.0.1"

    def moved(host: str, *args: Any, **kwargs: Any):
        return real(address if host == "engine.test" else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", moved)

    async def closes(peer: Peer, asked: Received) -> None:
        await peer.send(answer(COMPLETION, b"200 OK", b"Connection: close"))
        peer.close()

    async def scenario(directory: Path, environ: dict[str, str]) -> None:
        nonlocal address
        address = "127.0.0.1"
        async with Engine(closes) as first:
            second = at(Engine(closes), "127.0.0.2")
            server = await asyncio.start_server(second._accept, "127.0.0.2", first.port)
            async with server:
                yaml = backends_yaml(backend(f"http://engine.test:{first.port}", kind="vllm"))
                async with running_router(yaml, directory, {**FAST, **environ}) as running:
                    assert (await running.ask()).status == 200
                    assert (len(first.asked), len(second.asked)) == (1, 0)
                    address = "127.0.0.2"
                    assert (await running.ask()).status == 200
                    assert (len(first.asked), len(second.asked)) == (1, 1)
                    seen = len(second.probes)
                    async with asyncio.timeout(8.0):
                        while len(second.probes) < seen + 2:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)

    for name, environ in LANES.items():
        directory = tmp_path / name
        directory.mkdir()
        await asyncio.to_thread(asyncio.run, scenario(directory, environ))


# ---- certificates --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, with its key, in one PEM file."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=somebody",
            "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", folder / "key.pem", "-out", folder / "cert.pem",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    pem = folder / "both.pem"
    pem.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return pem


def behind_tls(certificate: Path, script=says_hello) -> Engine:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    engine = Engine(script)
    engine._ssl = context
    return engine


async def streams(peer: Peer, asked: Received) -> None:
    await peer.send(SSE_HEAD)
    await peer.chunk(event("a"), event("b"))
    await peer.send(LAST_CHUNK)


@pytest.mark.parametrize("kind", ["openai", "vllm", "gguf"])
@pytest.mark.parametrize("how", ["ca_file", "verify"])
async def test_bug_205_bug_207_a_private_ca_or_none_holds_for_probes_lists_and_requests(
    lane: Lane, certificate: Path, how: str, kind: str
) -> None:
    tls: dict[str, object] = (
        {"ca_file": str(certificate)} if how == "ca_file" else {"verify": False}
    )
    async with behind_tls(certificate, streams) as engine:
        # Its models are discovered: that takes the same trust.
        entry = {"name": "a", "url": engine.url, "tls": tls, "kind": kind}
        async with lane.router(entry, environ=FAST) as running:
            answered = await running.ask(CHAT, chat(stream=True))
            assert (answered.status, answered.body) == (200, event("a") + event("b"))
            state = await running.state()
            assert state["backends"]["a"]["health"] == "up"
            assert engine.probes
            warned = any("certificate is not checked" in str(one) for one in state["warnings"])
            assert warned == (how == "verify")


@pytest.mark.parametrize(
    ("tls", "opens"), [("ca_file", True), ("verify", True), (None, False)], ids=str
)
async def test_bug_205_bug_207_the_same_trust_holds_for_a_web_socket(
    lane: Lane, certificate: Path, tls: str | None, opens: bool
) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        sock = web.WebSocketResponse()
        await sock.prepare(request)
        async for message in sock:
            await sock.send_str(message.data)
        return sock

    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app, shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    own: dict[str, object] = (
        {"ca_file": str(certificate)} if tls == "ca_file" else {"verify": False}
    )
    entry = backend(f"https://127.0.0.1:{site.port}", **({"tls": own} if tls else {}))
    try:
        async with lane.router(entry) as running:
            url = f"{running.url}/v1/realtime?model=m"
            if not opens:
                with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                    await running.session.ws_connect(url)
                assert caught.value.status in (502, 503)
                return
            async with running.session.ws_connect(url) as sock:
                await sock.send_str("hello")
                assert (await sock.receive()).data == "hello"
    finally:
        await runner.cleanup()


async def test_bug_205_bug_207_without_either_a_stranger_is_not_trusted(
    lane: Lane, certificate: Path
) -> None:
    async with behind_tls(certificate) as engine:
        async with lane.router(backend(engine.url), environ=FAST) as running:
            refused = await running.ask()
            assert refused.status in (502, 503)
            assert not engine.asked and not engine.probes


async def test_bug_205_a_certificate_for_another_name_is_refused(
    lane: Lane, certificate: Path
) -> None:
    async with behind_tls(certificate) as engine:
        url = f"https://localhost:{engine.port}"
        entry = backend(url, tls={"ca_file": str(certificate)})
        async with lane.router(entry, environ=FAST) as running:
            assert (await running.ask()).status in (502, 503)
            assert not engine.asked


async def test_bug_205_each_backend_has_its_own_trust(lane: Lane, certificate: Path) -> None:
    async with behind_tls(certificate) as engine:
        trusting = backend(engine.url, "a", tls={"ca_file": str(certificate)}, models=["m"])
        doubting = backend(engine.url, "b", models=["n"])
        async with lane.router(trusting, doubting, environ=FAST) as running:
            for _ in range(3):
                assert (await running.ask()).status == 200
                assert (await running.ask(CHAT, chat(model="n"))).status in (502, 503)


async def test_bug_205_a_ca_file_that_is_none_stops_the_start(lane: Lane, tmp_path: Path) -> None:
    text = tmp_path / "not-a-certificate.pem"
    text.write_text("hello")
    for path in (text, tmp_path / "missing.pem"):
        entry = backend("https://127.0.0.1:9", tls={"ca_file": str(path)})
        with pytest.raises(BaseException) as caught:
            async with lane.router(entry):
                pass
        assert str(path) in _text_of(caught.value)


def _text_of(error: BaseException) -> str:
    inner = getattr(error, "exceptions", ())
    return " ".join([str(error), *map(_text_of, inner)])


# ---- no proxy in between -------------------------------------------------------------------------


async def test_bug_208_a_proxy_of_the_environment_is_not_asked(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, certificate: Path
) -> None:
    async def empty(peer: Peer) -> None:
        await peer.head()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    script: Callable[[Peer], Awaitable[None]] = empty
    async with ScriptedBackend(script) as proxy, behind_tls(certificate) as secure:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.lower(), proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with Engine(says_hello) as engine:
            # Neither answers for the other: each is asked itself, by probes and by requests.
            async with lane.router(
                {"name": "a", "url": engine.url},
                {"name": "b", "url": secure.url, "tls": {"verify": False}},
                environ=FAST,
            ) as running:
                for _ in range(4):
                    answered = await running.ask()
                    assert answered.status == 200
                    assert json.loads(answered.body) == COMPLETION
                assert engine.probes and secure.probes
                assert engine.asked and secure.asked
                assert proxy.connections == 0
