"""The dashboard over real sockets: files, headers, the pages made for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from yarl import URL

from lifeboat.edge.dashboard import MOST_PARKED, SECURITY_HEADERS
from lifeboat.web import static_files
from tests.running import running_router
from tests.web.conftest import SLOTS, Scene


async def test_every_file_is_served_whole_with_every_security_header(scene: Scene) -> None:
    for path, name in (("/", "index.html"), *((f"/static/{n}", n) for n in static_files())):
        async with scene.running.session.get(scene.url + path) as answer:
            assert answer.status == 200, path
            assert await answer.read() == static_files()[name].body
            assert answer.headers["Content-Type"] == static_files()[name].content_type
            assert {key: answer.headers[key] for key in SECURITY_HEADERS} == SECURITY_HEADERS


async def test_the_policy_allows_nothing_inline_and_nobody_else(scene: Scene) -> None:
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    assert policy.startswith("default-src 'none';")


@pytest.mark.parametrize("tag", ["{etag}", "W/{etag}", '"other", {etag}', "*"])
async def test_a_browser_that_has_the_file_gets_304(scene: Scene, tag: str) -> None:
    etag = static_files()["app.js"].etag
    headers = {"If-None-Match": tag.format(etag=etag)}
    async with scene.running.session.get(f"{scene.url}/static/app.js", headers=headers) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
        assert answer.headers["ETag"] == etag


async def test_a_browser_with_an_older_file_gets_the_new_one(scene: Scene) -> None:
    headers = {"If-None-Match": '"0123"'}
    async with scene.running.session.get(f"{scene.url}/static/app.js", headers=headers) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "path", ["nothing.js", "..%2f__init__.py", "%2e%2e/__init__.py", "app.js/", "a/app.js", ""]
)
async def test_only_names_of_the_table_are_served(scene: Scene, path: str) -> None:
    url = URL(f"{scene.url}/static/{path}", encoded=True)
    async with scene.running.session.get(url) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["code"] == "not_found"


async def test_a_head_gets_the_headers_and_another_method_405(scene: Scene) -> None:
    async with scene.running.session.head(f"{scene.url}/") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
    async with scene.running.session.post(f"{scene.url}/static/app.js") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_the_parked_are_listed_longest_first_and_never_what_they_say(scene: Scene) -> None:
    scene.ask(SLOTS)
    await scene.running.until(lambda state: state["inflight"]["a"] == SLOTS)
    for number, priority in enumerate(("low", "high", "nonsense"), start=1):
        scene.ask(1, **{"X-Lifeboat-Priority": priority})
        await scene.running.until(lambda state, n=number: state["queue_total_waiters"] == n)
    async with scene.running.session.get(f"{scene.url}/api/lb/parked") as answer:
        text = await answer.text()
        page = await answer.json()
    assert "SECRET-CONTENT" not in text
    assert page["total"] == 3
    assert [one["priority"] for one in page["parked"]] == ["low", "high", "normal"]
    ages = [one["age_sec"] for one in page["parked"]]
    assert ages == sorted(ages, reverse=True)
    for one in page["parked"]:
        assert one["model"] == "m"
        assert one["estimated_tokens"] > 0 and one["body_bytes"] > 40
        assert one["age_sec"] + one["remaining_sec"] == pytest.approx(60.0, abs=0.01)
        assert one["boosted"] is False


async def test_the_list_of_the_parked_is_cut_and_says_of_how_many(tmp_path: Path) -> None:
    yaml = """
mode: queue-all
backends: [{name: gone, kind: openai, url: "http://127.0.0.1:9", models: [m]}]
"""
    async with running_router(yaml, tmp_path) as running:
        scene = Scene(running, ())
        scene.ask(MOST_PARKED + 5)
        await running.until(lambda state: state["queue_total_waiters"] == MOST_PARKED + 5)
        async with running.session.get(f"{running.url}/api/lb/parked") as answer:
            page = await answer.json()
        assert (page["total"], len(page["parked"])) == (MOST_PARKED + 5, MOST_PARKED)
        await scene.close()


async def test_opening_the_page_shows_what_happened_before(scene: Scene) -> None:
    scene.ask(SLOTS + 3)
    await scene.running.until(lambda state: state["queue_total_waiters"] == 3)
    async with asyncio.timeout(5.0):
        while True:
            async with scene.running.session.get(f"{scene.url}/api/lb/history") as answer:
                page = await answer.json()
            if max(page["total"]["queue_depth"]) == 3:
                break
            await asyncio.sleep(0.1)
    assert max(page["total"]["in_flight"]) == SLOTS
    assert max(page["pools"]["m"]["queue_depth"]) == 3


async def test_on_a_second_listener_the_dashboard_is_there_alone(tmp_path: Path) -> None:
    yaml = """
backends: [{name: gone, kind: openai, url: "http://127.0.0.1:9", models: [m]}]
"""
    environ = {"LIFEBOAT_ADMIN_ADDR": "127.0.0.1:0"}
    async with running_router(yaml, tmp_path, environ) as running:
        for path in ("/", "/static/app.js", "/api/lb/history", "/api/lb/parked", "/openapi.json"):
            async with running.session.get(running.url + path) as answer:
                assert answer.status == 404, path
            async with running.session.get(running.admin_url + path) as answer:
                assert answer.status == 200, path
