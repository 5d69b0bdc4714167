"""A real nginx and a real HAProxy end TLS in front of a router, and hold nothing up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import until
from tests.running import CHAT, Running, backend, backends_yaml, chat_body, running_router

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAME = "lifeboat.example"
SESAME = {"Authorization": "Bearer sesame"}


def program(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, f"{name} is not installed: apt-get install {package}"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def certificate(directory: Path) -> ssl.SSLContext:
    """Make one for the name; return the context of a client that trusts it."""
    crt, key = directory / "lifeboat.crt", directory / "lifeboat.key"
    subprocess.run(
        [
            program("openssl", "openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes",
            "-days", "2", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}",
            "-keyout", key, "-out", crt,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    (directory / "lifeboat.pem").write_bytes(crt.read_bytes() + key.read_bytes())
    return ssl.create_default_context(cafile=crt)


def nginx(directory: Path, port: int, router_port: int) -> list[str]:
    site = (DEPLOY / "nginx.conf").read_text().replace("/etc/nginx/", f"{directory}/")
    site = site.replace("listen 443", f"listen 127.0.0.1:{port}").replace("8400", str(router_port))
    places = "".join(
        f"{kind}_temp_path {directory}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = directory / "nginx.conf"
    config.write_text(
        f"daemon off; pid {directory}/nginx.pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {places}\n{site}\n}}"
    )
    if os.geteuid() == 0:
        config.write_text(f"user root;\n{config.read_text()}")
    return [program("nginx", "nginx-light"), "-p", str(directory), "-c", str(config)]


def haproxy(directory: Path, port: int, router_port: int) -> list[str]:
    text = (DEPLOY / "haproxy.cfg").read_text().replace("/etc/haproxy/", f"{directory}/")
    text = text.replace("bind :443", f"bind 127.0.0.1:{port}").replace("8400", str(router_port))
    config = directory / "haproxy.cfg"
    config.write_text(text)
    return [program("haproxy", "haproxy"), "-q", "-db", "-f", str(config)]


class Proxied:
    """A router behind a proxy; `ask` goes to the proxy under its public name."""

    def __init__(self, running: Running, engine: HeldEngine, url: str, client: ssl.SSLContext):
        self.running = running
        self.engine = engine
        self.url = url
        self._client = client

    @contextlib.asynccontextmanager
    async def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self.running.session.request(
            method, self.url + path, json=body, ssl=self._client, server_hostname=NAME,
            headers={"Host": self.host, **headers},
        ) as answer:  # fmt: skip
            yield answer

    async def ask_and_stay_silent(self) -> asyncio.StreamWriter:
        """Send a chat on a connection of its own; `transport.abort()` hangs up as one that dies.

        A client library would first wait for the proxy's own goodbye.
        """
        port = int(self.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=self._client, server_hostname=NAME
        )
        body = json.dumps(chat_body()).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return writer

    @property
    def host(self) -> str:
        return f"{NAME}:{self.url.rpartition(':')[2]}"


@pytest.fixture(params=[nginx, haproxy], ids=["nginx", "haproxy"])
async def proxied(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxied]:
    client = certificate(tmp_path)
    async with HeldEngine() as engine:
        yaml = backends_yaml(
            backend(engine.url, max_concurrency=1), queue={"enabled": True, "ttl": "60s"}
        )
        environ = {"LIFEBOAT_ADMIN_TOKEN": "sesame"}
        async with running_router(yaml, tmp_path, environ) as running:
            port = free_port()
            command = request.param(tmp_path, port, running.port)
            with (tmp_path / "proxy.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
            found = Proxied(running, engine, f"https://127.0.0.1:{port}", client)
            try:
                await answers(found, tmp_path / "proxy.log")
                yield found
            finally:
                engine.release_all()
                process.terminate()
                await asyncio.wait_for(process.wait(), 20)


async def answers(proxied: Proxied, log: Path) -> None:
    for _ in range(100):
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with proxied.ask("GET", "/ready") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise AssertionError(await asyncio.to_thread(log.read_text))


@pytest.mark.real
async def test_an_event_passes_while_the_answer_is_still_being_made(proxied: Proxied) -> None:
    async with proxied.ask("POST", CHAT, chat_body(stream=True)) as answer:
        assert answer.status == 200
        async with asyncio.timeout(5):
            first = await answer.content.readany()
        assert re.search(rb"Hel", first)
        assert proxied.engine.running
        proxied.engine.release_all()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.real
async def test_a_parked_client_that_hangs_up_at_the_proxy_is_withdrawn(proxied: Proxied) -> None:
    served = await proxied.ask_and_stay_silent()
    await until(lambda: len(proxied.engine.running) == 1)
    parked = await proxied.ask_and_stay_silent()
    await proxied.running.until(lambda state: state["queue_total_waiters"] == 1)
    parked.transport.abort()
    await proxied.running.until(lambda state: state["queue_total_waiters"] == 0)
    assert len(proxied.engine.running) == 1
    served.transport.abort()
    await until(lambda: not proxied.engine.running)


@pytest.mark.real
async def test_changes_through_the_proxy_need_the_token_and_no_other_sites_page(
    proxied: Proxied,
) -> None:
    own, other = f"https://{proxied.host}", "https://evil.example"
    for headers, status in (
        ({}, 401),
        (SESAME, 200),
        ({**SESAME, "Origin": own}, 200),
        ({**SESAME, "Origin": other}, 403),
    ):
        async with proxied.ask("PUT", "/api/lb/mode", {"mode": "default"}, **headers) as answer:
            assert answer.status == status, headers
