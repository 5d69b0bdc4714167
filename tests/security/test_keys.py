"""Keys and tokens: from files, compared without telling, taken away by a reload."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from lifeboat.edge import keys
from lifeboat.edge.keys import KeyRing
from tests.acceptance.engines import HeldEngine
from tests.running import backend, backends_yaml, running_router

MODE = "/api/lb/mode"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def secret_files(directory: Path, keys: str, token: str) -> dict[str, str]:
    """Write both files, and return the variables that name them."""
    (directory / "keys").write_text(keys)
    (directory / "token").write_text(token)
    return {
        "LIFEBOAT_API_KEYS_FILE": str(directory / "keys"),
        "LIFEBOAT_ADMIN_TOKEN_FILE": str(directory / "token"),
    }


async def test_keys_and_the_token_come_from_files(tmp_path: Path) -> None:
    environ = secret_files(tmp_path, "first\nsecond,third\n", "sesame\n")
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        async with running_router(yaml, tmp_path, environ) as running:
            for key, status in (("first", 200), ("second", 200), ("third", 200), ("sesame", 401)):
                assert (await running.ask(headers=bearer(key))).status == status
            for key, status in (("sesame", 200), ("first", 401), ("sesame\n", 401)):
                headers = {"x-api-key": key.strip()} if key.endswith("\n") else bearer(key)
                change = await running.ask(
                    MODE, {"mode": "superfast"}, method="PUT", headers=headers
                )
                assert change.status == (200 if key.strip() == "sesame" else status)


async def test_a_key_that_is_taken_out_of_its_file_is_refused_after_a_reload(
    tmp_path: Path,
) -> None:
    environ = secret_files(tmp_path, "old\nkept\n", "old-token")
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        async with running_router(yaml, tmp_path, environ) as running:
            assert (await running.ask(headers=bearer("old"))).status == 200
            (tmp_path / "keys").write_text("kept\n")
            (tmp_path / "token").write_text("new-token")
            running.router.ask_to_reload()
            metric = 'lifeboat_config_reloads_total{result="success"}'
            while (await running.metrics())[metric] < 1:
                pass
            assert (await running.ask(headers=bearer("old"))).status == 401
            assert (await running.ask(headers=bearer("kept"))).status == 200
            for token, status in (("old-token", 401), ("new-token", 200)):
                change = await running.ask(
                    MODE, {"mode": "default"}, method="PUT", headers=bearer(token)
                )
                assert change.status == status


@pytest.mark.parametrize("presented", ["b", "z", "", "b" * 100_000])
def test_every_key_is_compared_in_constant_time_whether_or_not_one_matched(
    monkeypatch: pytest.MonkeyPatch, presented: str
) -> None:
    lengths: list[tuple[int, int]] = []

    def watched(one: bytes, other: bytes) -> bool:
        lengths.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(keys, "compare_digest", watched)
    ring = KeyRing(("a-long-key", "b", "c"))
    assert ring.admits((presented.encode(),)) is (presented == "b")
    # As many comparisons as keys, each of two digests of one length.
    assert lengths == [(32, 32)] * 3


@pytest.mark.parametrize("name", ["LIFEBOAT_API_KEYS", "LIFEBOAT_ADMIN_TOKEN"])
@pytest.mark.parametrize("suffix", ["", "_FILE"])
async def test_an_empty_secret_stops_the_start_instead_of_opening_the_door(
    tmp_path: Path, name: str, suffix: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    value = str(tmp_path / "empty") if suffix else ""
    with pytest.raises(Exception, match=name):
        async with running_router(
            backends_yaml(backend("http://127.0.0.1:9")), tmp_path, {name + suffix: value}
        ):
            raise AssertionError("it started")
