"""Where and how a server is reached: a CA of one's own, no check at all, IPv6 (BUG-199, 205, 207).

The certificate is made by the openssl command; a machine without it cannot run these.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.fleet.scripted import backend, house_of


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@asynccontextmanager
async def listening(
    host: str, trust: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[str]]]:
    """Run a server that lists one model; gives its port and the Host headers it saw."""
    hosts: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        hosts.append(request.headers["Host"])
        return web.json_response({"data": [{"id": "m"}]})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, 0, ssl_context=trust).start()
    try:
        yield runner.addresses[0][1], hosts
    finally:
        await runner.cleanup()


def served_with(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


async def test_a_ca_file_of_a_backend_holds_for_its_probes_and_its_list(
    certificate: tuple[Path, Path],
) -> None:
    async with listening("127.0.0.1", served_with(certificate)) as (port, _):
        url = f"https://127.0.0.1:{port}"
        entry = backend("a", url, tls_ca_file=certificate[0])
        async with house_of(entry, probe_timeout_s=2.0) as house:
            assert house.models("a") == {"m"}
            assert house.health("a") == "up"
            assert house.fleet.warnings() == {}


async def test_an_unknown_ca_is_no_answer(certificate: tuple[Path, Path]) -> None:
    async with listening("127.0.0.1", served_with(certificate)) as (port, hosts):
        async with house_of(backend("a", f"https://127.0.0.1:{port}")) as house:
            assert house.models("a") is None
        assert hosts == []


async def test_an_unchecked_certificate_works_and_is_warned_about(
    certificate: tuple[Path, Path],
) -> None:
    async with listening("127.0.0.1", served_with(certificate)) as (port, _):
        entry = backend("a", f"https://127.0.0.1:{port}", tls_verify=False)
        async with house_of(entry, probe_timeout_s=2.0) as house:
            assert house.models("a") == {"m"}
            assert "not checked" in house.fleet.warnings()["a"][0]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_an_ipv6_address_is_asked_in_brackets() -> None:
    async with (
        listening("::1") as (port, hosts),
        house_of(backend("a", f"http://[::1]:{port}")) as house,
    ):
        assert house.models("a") == {"m"}
        assert set(hosts) == {f"[::1]:{port}"}


async def test_a_name_is_resolved_and_asked_for() -> None:
    async with (
        listening("127.0.0.1") as (port, hosts),
        house_of(backend("a", f"http://localhost:{port}")) as house,
    ):
        assert house.models("a") == {"m"}
        assert set(hosts) == {f"localhost:{port}"}
