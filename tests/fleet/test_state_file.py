"""Registrations that survive a restart of the router."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest

from lifeboat.core.vocabulary import Kind
from lifeboat.fleet import Registration, state_file
from lifeboat.fleet.state_file import Remembered, StateFile
from lifeboat.settings import BackendConfig
from tests.fleet.scripted import backend, house_of, serving, until

FULL = BackendConfig(
    "b", Kind.GGUF, "http://h:1", models=("m",), max_concurrency=0, max_input_tokens="auto",
    api_key="secret", idle_timeout_s=1.5, tls_ca_file=Path("/ca.pem"), tls_verify=False,
)  # fmt: skip


async def test_a_registration_comes_back_after_a_restart_and_a_removed_one_does_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    async with serving(2) as [one, two]:
        async with house_of(state_file=path) as house:
            for name, server in (("r", one), ("s", two)):
                entry = {"name": name, "url": server.url, "ttl": 60, "max_concurrency": 3}
                await house.fleet.register(Registration.from_mapping(entry))
        async with house_of(backend("a", one), state_file=path) as house:
            assert set(house.fleet.members()) == {"a", "r", "s"}
            assert house.fleet.members()["r"].ttl_s == 60
            assert house.door.view().backends["r"].effective_limit == 3
            house.fleet.remove("s")
            await until(lambda: '"s"' not in path.read_text())
        async with house_of(state_file=path) as house:
            assert set(house.fleet.members()) == {"r"}


async def test_a_name_that_the_configuration_holds_by_now_stays_the_configurations(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.json"
    async with serving(2) as [one, two]:
        async with house_of(state_file=path) as house:
            await house.fleet.register(Registration.from_mapping({"name": "a", "url": one.url}))
        async with house_of(backend("a", two), state_file=path) as house:
            assert house.fleet.members()["a"].url == two.url


async def test_everything_of_a_registration_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    await StateFile(path).write([Remembered(FULL, 15.0), Remembered(FULL)])
    assert StateFile(path).read() == [Remembered(FULL, 15.0), Remembered(FULL)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"version": 2, "backends": []}', '{"version": 1}', "[" * 100_000,
     '{"version": 1, "backends": [{"url": "ftp://x"}]}', '{"version": 1, "backends": [7]}',
     '{"version": 1, "backends": [{"kind": "simulated"}]}',
     '{"version": 1, "backends": [{"url": "http://h", "ttl": "x"}]}'],
)  # fmt: skip
async def test_a_corrupt_file_is_said_so_left_as_it_is_and_not_used(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    async with serving() as [server], house_of(backend("a", server), state_file=path) as house:
        assert set(house.fleet.members()) == {"a"}
        assert "left as it is" in house.fleet.warnings()[""][0]
        await house.fleet.register(Registration.from_mapping({"name": "r", "url": server.url}))
    assert path.read_text() == text


async def test_a_file_that_cannot_be_written_is_a_warning_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    file = StateFile(folder / "state.json")
    await file.write([Remembered(FULL)])
    assert file.fault is not None and "cannot be written" in file.fault
    folder.mkdir()
    await file.write([Remembered(FULL)])
    assert file.fault is None and file.read() == [Remembered(FULL)]


async def test_nothing_is_written_while_nothing_was_registered(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    async with serving() as [server], house_of(backend("a", server), state_file=path):
        pass
    assert not path.exists()


async def test_a_write_whose_caller_was_cancelled_ends_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    let_through, began = threading.Event(), threading.Event()
    really = state_file._replace

    def slowly(at: Path, text: str) -> None:
        began.set()
        assert let_through.wait(10.0)
        really(at, text)

    monkeypatch.setattr(state_file, "_replace", slowly)
    store = StateFile(path)
    first = asyncio.ensure_future(store.write([Remembered(FULL, 15.0)]))
    await until(began.is_set)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    same = asyncio.ensure_future(store.write([Remembered(FULL, 15.0)]))
    newer = asyncio.ensure_future(store.write([Remembered(FULL, 30.0)]))
    await asyncio.sleep(0.05)
    assert not same.done() and not newer.done() and not path.exists()
    let_through.set()
    await asyncio.gather(same, newer)
    assert [one.ttl_s for one in StateFile(path).read()] == [30.0]
    assert store.fault is None
