"""The package installs into an empty environment and serves from an empty directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.running import RouterProcess

ROOT = Path(__file__).parents[2]
NOT_THE_PROJECT = shutil.ignore_patterns(
    ".git", ".venv*", "__pycache__", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def installed(directory: Path) -> Path:
    """Install the project from a copy (a build leaves files behind); return the command."""
    source = directory / "source"
    shutil.copytree(ROOT, source, ignore=NOT_THE_PROJECT)
    venv = directory / "venv"
    quiet = ("--quiet", "--disable-pip-version-check")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(venv / "bin/python"), "-m", "pip", "install", *quiet, str(source)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
        assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-2000:]}"
    shutil.rmtree(source)
    return venv / "bin/lifeboat"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


async def test_installed_into_an_empty_environment_it_serves_from_an_empty_directory(
    tmp_path: Path,
) -> None:
    command = await asyncio.to_thread(installed, tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    router = await RouterProcess.start(cwd=empty, command=(str(command),))
    try:
        async with aiohttp.ClientSession(router.url) as session:
            async with session.get("/ready") as answer:
                assert answer.status == 200
            async with session.get("/v1/models") as answer:
                model = (await answer.json())["data"][0]["id"]
            # A cap close to the estimate, so that the tokenizer has to come out of the wheel.
            explained = await explain(session, model)
            assert explained["decision"] == "dispatch"
            async with session.patch(
                "/api/lb/backends/sim-a",
                json={"max_input_tokens": explained["estimate"]["tokens"]},
            ) as answer:
                assert answer.status == 200
            async with session.post(
                "/v1/chat/completions",
                json={
                    "model": model,
                    "messages": [{"role": "user", "content": "Hi"}],
                    "max_tokens": 4,
                },
            ) as answer:
                assert answer.status == 200
                assert (await answer.json())["choices"][0]["message"]["content"]
            # It loads beside the traffic; until then the quick figure stands.
            async with asyncio.timeout(30):
                while (await explain(session, model))["estimate"]["method"] != "tokenizer":  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            async with session.get("/") as answer:
                assert answer.status == 200
                assert answer.content_type == "text/html"
    finally:
        code = await router.stop()
    assert code == 0
    assert any("two embedded simulated backends" in line for line in await rest(router)), (
        "it does not say what it runs on"
    )
    log = router.log.read_text()
    assert "Traceback" not in log
    await asyncio.to_thread(check_the_wheel, command, empty)


async def explain(session: aiohttp.ClientSession, model: str) -> dict:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
    call = {"path": "/v1/chat/completions", "body": body}
    async with session.post("/api/lb/explain", json=call) as answer:
        return await answer.json()


async def rest(router: RouterProcess) -> list[str]:
    """Return all it said on standard output, read to the end."""
    assert router.process.stdout is not None
    return router.said + (await router.process.stdout.read()).decode().splitlines()


def check_the_wheel(command: Path, cwd: Path) -> None:
    """The command, the schema, the vocabularies and the licences are all there."""
    python = command.parent / "python"
    assert "queue_timeout" in run(command, "rejections", cwd=cwd)
    assert run(command, "version", cwd=cwd).strip()
    (cwd / "backends.yaml").write_text("backends: [{url: 'http://127.0.0.1:9'}]\n")
    run(command, "check", "backends.yaml", cwd=cwd)
    listing = run(
        python,
        "-c",
        "import lifeboat, pathlib; "
        "print(*(p.name for p in pathlib.Path(lifeboat.__file__).parent.rglob('*')))",
        cwd=cwd,
    ).split()
    for wanted in ("py.typed", "backends.schema.json", "index.html"):
        assert wanted in listing, wanted
    assert sum(name.endswith(".gz") for name in listing) >= 2, "the vocabularies are missing"
