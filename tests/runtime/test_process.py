"""`lifeboat serve` as a process: what it says, how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.engines import HeldEngine
from tests.peers import RawClient, until
from tests.running import CHAT, RouterProcess, backend, backends_yaml, chat_body

QUICK = {"LIFEBOAT_LB_TOKENIZER": "quick"}
QUEUE = {"enabled": True}


@asynccontextmanager
async def process(
    directory: Path, yaml: str | None = None, *args: str, **environ: str
) -> AsyncIterator[RouterProcess]:
    if yaml is not None:
        (directory / "backends.yaml").write_text(yaml)
    router = await RouterProcess.start(*args, cwd=directory, environ={**QUICK, **environ})
    try:
        yield router
    finally:
        if router.process.returncode is None:
            router.process.kill()
        await router.process.wait()


async def ask(router: RouterProcess, body: object = None) -> tuple[int, dict[str, str], bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(router.url + CHAT, json=body or chat_body()) as answer,
    ):
        return answer.status, dict(answer.headers), await answer.read()


async def state(router: RouterProcess) -> dict:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{router.url}/api/lb/state") as answer,
    ):
        return await answer.json()


async def until_state(router: RouterProcess, holds) -> None:
    async with asyncio.timeout(10):
        while not holds(await state(router)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def ended(router: RouterProcess, seconds: float = 10.0) -> int:
    return await asyncio.wait_for(router.process.wait(), seconds)


async def test_without_any_configuration_it_runs_and_what_it_says_to_try_works(
    tmp_path: Path,
) -> None:
    async with process(tmp_path) as router:
        assert router.process.stdout is not None
        text = ""
        async with asyncio.timeout(5):
            while "/api/lb/state" not in text:
                text += (await router.process.stdout.readline()).decode()
        assert "two embedded simulated backends" in text
        curl = next(line.strip() for line in text.splitlines() if "chat/completions" in line)
        assert shutil.which("curl"), "curl is needed for this test"
        trying = await asyncio.create_subprocess_shell(
            curl, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        said, _ = await trying.communicate()
        assert said.startswith(b"HTTP/1.1 200 OK")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["choices"]
        assert await router.stop() == 0
        assert "Traceback" not in router.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_finishes_what_runs_refuses_what_waits_and_ends_with_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue=QUEUE)
        async with process(tmp_path, yaml) as router:
            idle = await RawClient.connect(router.port)
            run = asyncio.create_task(ask(router, chat_body(stream=True)))
            await until(lambda: len(engine.running) == 1)
            parked = asyncio.create_task(ask(router))
            await until_state(router, lambda page: page["queue_total_waiters"] == 1)
            router.process.send_signal(number)
            status, headers, body = await asyncio.wait_for(parked, 5)
            assert (status, headers["X-Lifeboat-Reject-Reason"]) == (503, "shutting_down")
            assert json.loads(body)["error"]["wait_ms"] > 0
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{router.url}/ready") as answer,
            ):
                assert answer.status == 503
            late = await ask(router)
            assert (late[0], late[1]["X-Lifeboat-Reject-Reason"]) == (503, "shutting_down")
            assert router.process.returncode is None
            engine.release_all()
            status, _, body = await run
            assert status == 200 and body.endswith(b"[DONE]\n\n")
            assert await ended(router) == 0
            idle.close()


async def test_parked_requests_are_served_in_the_drain_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue=QUEUE)
        async with process(tmp_path, yaml, LIFEBOAT_SHUTDOWN_SERVE_PARKED="true") as router:
            asks = [asyncio.create_task(ask(router)) for _ in range(3)]
            await until_state(router, lambda page: page["queue_total_waiters"] == 2)
            router.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            late = await ask(router)
            assert late[0] == 503
            engine.release_all()
            assert [(await one)[0] for one in asks] == [200] * 3
            assert await ended(router) == 0


async def test_when_the_grace_is_over_what_still_runs_is_cut_off(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url))
        async with process(tmp_path, yaml, LIFEBOAT_SHUTDOWN_GRACE_SEC="0.3") as router:
            run = asyncio.create_task(ask(router, chat_body(stream=True)))
            await until(lambda: len(engine.running) == 1)
            router.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await run
            assert await ended(router, 5.0) == 0
            await until(lambda: not engine.running)


async def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        async with process(tmp_path, backends_yaml(backend(engine.url))) as router:
            run = asyncio.create_task(ask(router))
            await until(lambda: len(engine.running) == 1)
            router.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.3)
            assert router.process.returncode is None
            router.process.send_signal(signal.SIGINT)
            assert await ended(router, 5.0) == 1
            with pytest.raises(aiohttp.ClientError):
                await run
            assert "Traceback" not in router.log.read_text()


async def test_connections_that_arrive_while_it_closes_are_answered_not_reset(
    tmp_path: Path,
) -> None:
    """A client in a loop over the whole shutdown sees answers, then a refused connection."""
    async with HeldEngine(hold_s=0.0) as engine:
        async with process(tmp_path, backends_yaml(backend(engine.url))) as router:
            seen: set[object] = set()

            async def keep_asking() -> None:
                while True:
                    try:
                        client = await RawClient.connect(router.port)
                    except (ConnectionRefusedError, ConnectionResetError):
                        # Refused, or the door closed within the handshake: nothing was sent.
                        return
                    try:
                        await client.post(CHAT, b'{"model": "m"}')
                        seen.add((await client.reply()).status)
                    except (ConnectionError, asyncio.IncompleteReadError) as error:
                        seen.add(repr(error))
                    client.close()

            askers = [asyncio.create_task(keep_asking()) for _ in range(4)]
            await asyncio.sleep(0.3)
            router.process.send_signal(signal.SIGTERM)
            assert await ended(router) == 0
            await asyncio.gather(*askers)
            assert 200 in seen
            assert seen <= {200, 503}


async def test_a_taken_address_is_said_plainly(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await run_to_its_end("serve", "--port", str(port), cwd=tmp_path)
    assert code == 1
    assert f"127.0.0.1:{port}" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        ("backends: [{kind: simulated, simulate: {model: nonsense}}]", "simulate.model"),
        ("backends: [{kind: simulated, simulate: {nonsense: 1}}]", "simulate.nonsense"),
        ("backends: [{url: 'https://127.0.0.1:9', tls: {ca_file: none.pem}}]", "none.pem"),
        ("host: no.such.host.invalid", "no.such.host.invalid"),
    ],
)
async def test_what_cannot_start_is_said_plainly(tmp_path: Path, yaml: str, says: str) -> None:
    (tmp_path / "backends.yaml").write_text(yaml)
    code, said = await run_to_its_end("serve", "--port", "0", cwd=tmp_path)
    assert code in (1, 2)
    assert says in said
    assert "Traceback" not in said


async def test_a_faulty_configuration_is_told_whole_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "backends.yaml").write_text(
        "mode: fast\nbackends: [{url: 'ftp://x'}, {max_concurrency: -1}]\n"
    )
    code, said = await run_to_its_end("serve", cwd=tmp_path)
    assert code == 2
    for wanted in ("fast", "queue-all", "ftp://x", "max_concurrency"):
        assert wanted in said
    assert "Traceback" not in said


async def run_to_its_end(*args: str, cwd: Path) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lifeboat", *args,
        cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(child.communicate(), 20)
    assert child.returncode is not None
    return child.returncode, said.decode()


async def test_registered_backends_survive_a_restart(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        environ = {"LIFEBOAT_STATE_FILE": str(tmp_path / "state.json")}
        # Something must be configured, or the two simulated ones stand in.
        yaml = backends_yaml(backend("http://127.0.0.1:9", "down", models=["other"]))
        async with process(tmp_path, yaml, **environ) as router:
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    f"{router.url}/api/lb/backends", json=backend(engine.url, "added")
                ) as answer,
            ):
                assert answer.status == 201
            assert (await ask(router))[0] == 200
            assert await router.stop() == 0
        async with process(tmp_path, yaml, **environ) as router:
            assert set((await state(router))["backends"]) == {"down", "added"}
            assert (await ask(router))[0] == 200
            assert await router.stop() == 0


async def test_sighup_reads_the_file_again_and_wakes_whoever_now_fits(tmp_path: Path) -> None:
    async with HeldEngine() as engine:
        yaml = backends_yaml(backend(engine.url, max_concurrency=1), queue=QUEUE)
        async with process(tmp_path, yaml) as router:
            asks = [asyncio.create_task(ask(router)) for _ in range(4)]
            await until_state(router, lambda page: page["queue_total_waiters"] == 3)
            (tmp_path / "backends.yaml").write_text("backends: [{url: nonsense}]")
            router.process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.3)
            assert len(engine.running) == 1
            (tmp_path / "backends.yaml").write_text(
                backends_yaml(backend(engine.url, max_concurrency=3), queue=QUEUE)
            )
            router.process.send_signal(signal.SIGHUP)
            await until(lambda: len(engine.running) == 3, 5.0)
            assert (await state(router))["queue_total_waiters"] == 1
            engine.release_all()
            assert [(await one)[0] for one in asks] == [200] * 4
            assert engine.most_running == 3
            assert await router.stop() == 0


async def test_a_second_listener_takes_what_is_for_operators(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        async with process(tmp_path, yaml, LIFEBOAT_ADMIN_ADDR=f"127.0.0.1:{port}") as router:
            admin = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession() as session:
                for path in ("/api/lb/state", "/metrics", "/"):
                    async with session.get(router.url + path) as answer:
                        assert answer.status == 404, path
                    async with session.get(admin + path) as answer:
                        assert answer.status == 200, path
                async with session.post(admin + CHAT, json=chat_body()) as answer:
                    assert answer.status == 404
                for path in ("/health", "/ready", "/v1/models"):
                    async with session.get(router.url + path) as answer:
                        assert answer.status == 200, path
            assert (await ask(router))[0] == 200
            assert await router.stop() == 0


async def test_it_starts_ready_while_backends_are_down_unless_told_otherwise(
    tmp_path: Path,
) -> None:
    yaml = backends_yaml(backend("http://127.0.0.1:9"))
    for needs, wanted in (("false", 200), ("true", 503)):
        async with process(tmp_path, yaml, LIFEBOAT_READY_NEEDS_BACKEND=needs) as router:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{router.url}/ready") as answer:
                    assert answer.status == wanted
                async with session.get(f"{router.url}/health") as answer:
                    assert answer.status == 200
            assert await router.stop() == 0


async def test_an_unknown_variable_and_a_useless_one_are_warned_of(tmp_path: Path) -> None:
    yaml = backends_yaml(backend("http://127.0.0.1:9"))
    async with process(
        tmp_path, yaml, LIFEBOAT_LB_MODUS="x", LIFEBOAT_LB_MODE="queue-all",
        LIFEBOAT_LB_QUEUE_ENABLED="false",
    ) as router:  # fmt: skip
        warnings = (await state(router))["warnings"]
        assert await router.stop() == 0
    said = json.dumps(warnings)
    assert re.search(r"LIFEBOAT_LB_MODUS.*LIFEBOAT_LB_MODE", said)
    assert re.search(r"(?i)queue.?enabled", said)
