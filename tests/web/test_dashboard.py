"""The dashboard in a real Chromium, on a real router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route

from lifeboat.core.rejections import REJECTIONS
from lifeboat.core.vocabulary import Reason
from lifeboat.sim.config import EngineConfig
from lifeboat.sim.server import SimulatedServer
from tests.acceptance.engines import HeldEngine
from tests.running import RouterProcess, running_router
from tests.web.browsing import NARROW, WIDE, Watched, chromium, watching
from tests.web.conftest import CEILING, HOSTILE, SLOTS, Scene, scene_in
from tests.web.screenshots import take

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]

POOL = "#pools .pool"
"""The card of `m`, the first."""
TOKEN = "swordfish"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all; each test has a context of its own."""
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_in(tmp_path) as found:
        yield found


async def full(scene: Scene, parked: int) -> None:
    """Fill every slot of `m` and park some more."""
    scene.ask(SLOTS)
    await scene.running.until(lambda state: state["inflight"]["a"] == SLOTS)
    scene.ask(parked)
    await scene.running.until(lambda state: state["queue_total_waiters"] == parked)


async def test_a_queue_is_seen_to_build_and_to_drain(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await seen.shows(POOL, f"0 / {SLOTS}")
        await full(scene, 4)
        await seen.shows(POOL, f"{SLOTS} / {SLOTS}")
        await seen.shows(POOL, f"4 / {CEILING}")
        await seen.shows("#parked-words", "4 requests wait")
        assert await seen.find("#parked tbody tr").count() == 4
        assert "SECRET-CONTENT" not in await seen.find("body").inner_text()
        assert await seen.page.title() == "(4 parked) Lifeboat"
        # The history takes a sample now and then: they wait until it has one of them.
        await seen.page.wait_for_function(
            "() => [...document.querySelectorAll('svg[role=img]')].some("
            "(one) => one.getAttribute('aria-label').includes('at most 4'))"
        )
        for left in (3, 2, 1, 0):
            scene.engines[0].release()
            await seen.shows(POOL, f"{left} / {CEILING}")
        scene.engines[0].release_all()
        await seen.shows(POOL, f"0 / {SLOTS}")
        await seen.shows("#parked-words", "Nothing is parked")
        assert await seen.page.title() == "Lifeboat"
        drawn = seen.page.get_by_role("img", name="Parked: now")
        assert "at most 4" in (await drawn.get_attribute("aria-label") or "")


async def test_every_figure_is_the_one_of_the_state(scene: Scene, browser: Browser) -> None:
    await full(scene, CEILING)
    assert [await task for task in scene.ask(3)] == [503] * 3
    for left in range(CEILING - 1, 2, -1):
        scene.engines[0].release()
        await scene.running.until(lambda state, left=left: state["queue_total_waiters"] == left)
    state = await scene.running.state()
    async with watching(browser, scene.url) as seen:
        await seen.shows(POOL, f"3 / {CEILING}")
        shown = await seen.figures(POOL)
        pool = state["pools"]["m"]
        assert shown["In flight / effective limit"] == f"{SLOTS} / {SLOTS}"
        assert shown["Sent"] == str(pool["dispatched"]) == "7"
        assert shown["Refused"] == "3"
        assert shown["TTL"] == "60 s"
        for part in (50, 95, 99):
            wait_ms = round(pool[f"wait_p{part}_sec"] * 1000)
            assert shown[f"Wait p{part}"] == (
                f"{wait_ms} ms" if wait_ms < 1000 else f"{wait_ms / 1000:.1f} s"
            )
        rows = {
            await row.locator("h3").inner_text(): await row.inner_text()
            for row in await seen.find("#backends > li").all()
        }
        assert "2 held of 2 (as configured)" in rows["a"]
        assert "0 held of 1 (as configured)" in rows["b"]
        tiles = await seen.find("#overview").inner_text()
        assert "7 sent since the start" in tiles
        assert [line for line in tiles.splitlines() if line.isdigit()] == ["2", "3", "3"]


async def test_the_tiles_lose_nothing_when_a_backend_leaves(scene: Scene, browser: Browser) -> None:
    tasks = scene.ask(2)
    await scene.running.until(lambda state: sum(state["inflight"].values()) == 2)
    scene.engines[0].release_all()
    assert [await task for task in tasks] == [200, 200]
    assert await scene.ask(1, model="nobody")[0] == 503
    assert (await scene.running.admin("DELETE", "backends/a")).status == 204
    await scene.running.until(lambda state: "a" not in state["backends"])
    async with watching(browser, scene.url) as seen:
        tiles = await seen.find("#overview").inner_text()
        assert "2 sent since the start" in tiles
        assert "since the start; 1 of no pool below" in tiles


async def test_a_pool_says_whether_its_capacity_suffices(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await seen.shows(POOL, "Too few requests to judge.")
        await full(scene, CEILING)
        assert [await task for task in scene.ask(30)] == [503] * 30
        await seen.shows(POOL, "Too little capacity.")
        await seen.shows(POOL, "raise max_concurrency")
        report = (await scene.running.admin("GET", "capacity")).json["pools"]["m"]
        await seen.shows(
            POOL, f"{report['backends']} in service, {report['desired_backends']} wanted"
        )


async def test_demand_is_of_the_same_moment_as_what_runs_and_waits(
    scene: Scene, browser: Browser
) -> None:
    """A card that shows five requests beside a demand of two is wrong in one of them."""
    async with watching(browser, scene.url) as seen:
        await seen.page.evaluate(CARDS_LOG)
        await full(scene, 3)
        await seen.shows(POOL, "Demand 5.0 slots")
        scene.engines[0].release_all()
        await seen.shows(POOL, "Demand 0.0 slots")
        cards: list[list[int]] = await seen.page.evaluate("window.cards")
        assert {demand for _, _, demand in cards} >= {0, 5}
        assert all(running + waiting == demand for running, waiting, demand in cards)


CARDS_LOG = """
window.cards = [];
new MutationObserver(() => {
    const [running, waiting] = [...document.querySelectorAll("#pools .figure")].map(
        (figure) => parseInt(figure.textContent));
    const demand = document.querySelector("#pools .verdict").textContent.match(/Demand ([0-9.]+)/);
    window.cards.push([running, waiting, Number(demand[1])]);
}).observe(document.getElementById("pools"), {childList: true, subtree: true, characterData: true});
"""
"""Notes what the first card says whenever it has changed."""


async def test_a_chart_tells_the_figure_under_the_pointer_and_the_table_the_same(
    scene: Scene, browser: Browser
) -> None:
    async with watching(browser, scene.url) as seen:
        await full(scene, 3)
        chart = seen.find("#charts figure").nth(1)
        await seen.page.wait_for_function(
            "() => document.querySelectorAll('#charts .top-value')[1].textContent === '3'"
        )
        box = await chart.locator("svg").bounding_box()
        assert box is not None
        await seen.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
        assert (await chart.locator(".pointed").inner_text()).endswith(" ago: 3")
        await seen.find("#history-details summary").click()
        newest = seen.find("#history-table tbody tr").first.locator("td")
        await newest.first.wait_for()
        assert (await newest.all_inner_texts())[1:3] == [str(SLOTS), "3"]
        await seen.page.select_option("#history-pool", label=HOSTILE)
        await seen.page.wait_for_function(
            "() => document.querySelectorAll('#charts .top-value')[1].textContent === ''"
        )


async def test_a_refusal_is_counted_beside_its_remedy(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await seen.shows("#rejections-words", "Nothing has been refused")
        assert await seen.find("#rejections tbody tr").count() == len(REJECTIONS)
        await full(scene, CEILING)
        assert [await task for task in scene.ask(2)] == [503, 503]
        row = seen.find("#rejections tbody tr[data-met]")
        await row.wait_for()
        await seen.shows("#rejections-words", "2 refused")
        text = await row.inner_text()
        assert "503 queue_full" in text and REJECTIONS[Reason.QUEUE_FULL].advice in text
        await seen.page.wait_for_function(
            "() => !document.querySelector('#rejections [data-met]').innerText.includes('never')"
        )
        await seen.find("#rejections-met").check()
        assert await seen.find("#rejections tbody tr:visible").count() == 1


async def test_the_mode_switch_asks_for_the_token(tmp_path: Path, browser: Browser) -> None:
    async with (
        scene_in(tmp_path, LIFEBOAT_ADMIN_TOKEN=TOKEN) as scene,
        watching(browser, scene.url) as seen,
    ):
        seen.expected.append("status of 401")
        superfast, dialog = seen.button("superfast"), seen.find("#token-dialog")
        await superfast.click()
        await dialog.wait_for()
        assert "The router wants its admin token" in await dialog.inner_text()
        await seen.button("Cancel").click()
        assert (await scene.running.state())["routing_mode"] == "default"

        await superfast.click()
        await seen.find("#token").fill("wrong")
        await seen.button("Use it").click()
        await seen.shows("#token-why", "not accepted")
        assert (await scene.running.state())["routing_mode"] == "default"
        await seen.find("#token").fill(TOKEN)
        await seen.page.keyboard.press("Enter")
        await seen.shows("#announcer", "The mode is superfast")
        await seen.page.wait_for_selector(
            "#mode-buttons button[aria-pressed=true]:text('superfast')"
        )
        assert (await scene.running.state())["routing_mode"] == "superfast"

        await seen.button("Back to what is configured").first.click()
        await seen.shows("#announcer", "The mode is default")
        kept = "[localStorage.length, document.cookie, sessionStorage.length]"
        assert await seen.page.evaluate(kept) == [0, "", 1]
        assert TOKEN not in await seen.page.content()
        await seen.button("Forget the admin token").click()
        assert await seen.page.evaluate(kept) == [0, "", 0]
        await superfast.click()
        await dialog.wait_for()


async def test_the_queue_is_switched_on_and_off(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await seen.page.wait_for_function("() => document.getElementById('queue-enabled').checked")
        await seen.find("#queue-enabled").uncheck()
        await scene.running.until(lambda state: not state["queue_enabled"])
        await seen.shows(POOL, "queue off")
        await seen.button("queue-all").click()
        await seen.shows("#queue-words", "always on in this mode")
        assert await seen.find("#queue-enabled").is_disabled()


PAUSABLE_STREAM = """
const Real = window.EventSource;
let last = null;
window.EventSource = class {
    constructor(url) {
        this.real = new Real(url);
        this.real.onmessage = (event) => window.paused || this.onmessage(event);
        this.real.onerror = (event) => this.onerror(event);
        last = this;
    }
    addEventListener(kind, heard) { this.real.addEventListener(kind, heard); }
    close() { this.real.close(); }
};
window.tell = (state) => last.onmessage({data: JSON.stringify(state)});
"""
"""A stream of states that a test can hold back, and put its own into."""


async def pausable(page: Page) -> None:
    await page.add_init_script(PAUSABLE_STREAM)


PRESSED = "document.querySelector('[aria-label=\"{} a\"]').getAttribute('aria-pressed') === 'true'"
MODE = "document.querySelector('#mode-buttons [aria-pressed=true]').textContent"
QUEUE = "document.getElementById('queue-enabled').checked"
LIMIT = "document.querySelector('#backends input').value"


async def uncheck_the_queue(seen: Watched) -> None:
    await seen.find("#queue-enabled").click()


async def choose_superfast(seen: Watched) -> None:
    await seen.button("superfast").click()


async def drain_a(seen: Watched) -> None:
    await seen.button("Drain a").click()


async def set_seven(seen: Watched) -> None:
    """Then close the form: an open one is the person's own, and never written to."""
    summary = seen.find("summary[aria-label='Change the limit of a']")
    await summary.click()
    await seen.find("#backends input").first.fill("7")
    await seen.page.keyboard.press("Enter")
    await summary.click()


Back = tuple[str, str, dict[str, object]]
CONTROLS: list[tuple[Callable[[Watched], Awaitable[None]], str, object, object, Back]] = [
    (uncheck_the_queue, QUEUE, True, False, ("PUT", "mode", {"queue_enabled": True})),
    (choose_superfast, MODE, "default", "superfast", ("PUT", "mode", {"mode": "default"})),
    (drain_a, PRESSED.format("Drain"), False, True, ("PATCH", "backends/a", {"state": "ready"})),
    (set_seven, LIMIT, "2", "7", ("PATCH", "backends/a", {"max_concurrency": 2})),
]


@pytest.mark.parametrize(
    ("change", "reads", "before", "after", "back"),
    CONTROLS,
    ids=[one[0].__name__ for one in CONTROLS],
)
async def test_a_state_told_before_the_change_does_not_move_the_control_back(
    scene: Scene,
    browser: Browser,
    change: Callable[[Watched], Awaitable[None]],
    reads: str,
    before: object,
    after: object,
    back: Back,
) -> None:
    async with watching(browser, scene.url, prepare=pausable) as seen:

        async def told(state: dict[str, Any], mark: str) -> None:
            await seen.page.evaluate("(state) => window.tell(state)", {**state, "version": mark})

        async def shown() -> object:
            return await seen.page.evaluate(reads)

        let_through = asyncio.Event()

        async def hold(route: Route) -> None:
            if route.request.method in ("PUT", "PATCH"):
                await let_through.wait()
            await route.continue_()

        await seen.page.route("**/api/lb/**", hold)
        await seen.page.evaluate("window.paused = true")
        old = await scene.running.state()
        await told(old, "first")
        await seen.shows("#facts", "first")
        assert await shown() == before
        await change(seen)
        # Asked, and not answered: a state that was read meanwhile says what was.
        await told(await scene.running.state(), "meanwhile")
        await seen.shows("#facts", "meanwhile")
        assert await shown() == after
        let_through.set()
        await seen.shows("#announcer", " ")
        # Answered: a state that was on its way for long does not count any more.
        await told(old, "overtaken")
        await asyncio.sleep(0.3)
        assert "overtaken" not in await seen.find("#facts").inner_text()
        assert await shown() == after
        # Changed by someone else, it follows.
        assert (await scene.running.admin(back[0], back[1], back[2])).status == 200
        await told(await scene.running.state(), "newer")
        await seen.shows("#facts", "newer")
        assert await shown() == before


async def test_a_change_that_fails_leaves_the_control_where_it_was(
    scene: Scene, browser: Browser
) -> None:
    async with watching(browser, scene.url) as seen:
        seen.expected.append("status of 503")

        async def refuse(route: Route) -> None:
            if route.request.method == "GET":
                await route.continue_()
            else:
                await route.fulfill(status=503, json={"error": {"message": "not today"}})

        await seen.page.route("**/api/lb/**", refuse)
        for change, reads, before, _, _ in CONTROLS:
            await change(seen)
            await seen.page.wait_for_function(f"() => ({reads}) === {json.dumps(before)}")
        await seen.shows("#mode-error", "not today")
        await seen.shows("#backend-error", "a: not today")


async def test_before_the_first_state_nothing_is_claimed(scene: Scene, browser: Browser) -> None:
    let_through = asyncio.Event()

    async def hold(route: Route) -> None:
        await let_through.wait()
        await route.continue_()

    async def prepare(page: Page) -> None:
        await page.route("**/api/lb/**", hold)

    async with watching(browser, scene.url, prepare=prepare, live=False) as seen:
        await seen.shows("#connection", "connecting")
        text = await seen.find("main").inner_text()
        assert text.count("Not known yet: the router has not answered.") == 7
        for claim in (
            "Nothing is parked",
            "Nothing has",
            "No model",
            "no backend",
            "15 min ago",
            "Only those",
            "Park what",
        ):
            assert claim not in text
        let_through.set()
        await seen.shows("#connection", "live")
        await seen.shows("#parked-words", "Nothing is parked.")
        await seen.page.wait_for_selector("#charts figure")
        await seen.page.wait_for_selector("#mode-buttons button")
        assert "Not known yet" not in await seen.find("main").inner_text()


async def test_figures_that_are_no_longer_told_say_how_old_they_are(
    scene: Scene, browser: Browser
) -> None:
    """Also where the connection stands and nothing comes: frozen, or cut off without a word."""
    cut = True

    async def silence(route: Route) -> None:
        if not cut:
            await route.continue_()

    async with watching(browser, scene.url, prepare=pausable) as seen:
        assert not await seen.find("#age").is_visible()
        await seen.page.route("**/api/lb/**", silence)
        await seen.page.evaluate("window.paused = true")
        await seen.page.wait_for_function(
            "() => /^The figures below are [0-9]+ s old[.]$/.test("
            "document.getElementById('age').textContent)"
        )
        looks = "getComputedStyle(document.querySelector('main')).filter"
        assert await seen.page.evaluate(looks) == "grayscale(1)"
        await seen.page.wait_for_function(
            "() => document.getElementById('connection').textContent === 'gone'", timeout=40_000
        )
        assert "old." in await seen.find("#age").inner_text()
        assert await seen.faults_of_access() == []
        cut = False
        await seen.page.evaluate("window.paused = false")
        await seen.page.wait_for_function(
            "() => document.getElementById('connection').textContent === 'live'", timeout=40_000
        )
        await seen.page.wait_for_selector("#age", state="hidden")
        assert await seen.page.evaluate(looks) == "none"


async def test_a_backend_is_drained_and_made_ready_by_keyboard(
    scene: Scene, browser: Browser
) -> None:
    async with watching(browser, scene.url) as seen:
        await full(scene, 1)
        await seen.button("Drain a").focus()
        await seen.page.keyboard.press("Enter")
        await scene.running.until(lambda state: state["backends"]["a"]["state"] == "drain")
        await seen.shows("#backends", "closed: draining")
        assert await seen.button("Drain a").get_attribute("aria-pressed") == "true"
        scene.engines[0].release_all()
        await seen.shows("#backends", "0 held of 0")
        assert (await scene.running.state())["queue_total_waiters"] == 1
        # A second of updates later the focus is where it was.
        focused = "document.activeElement.getAttribute('aria-label')"
        assert await seen.page.evaluate(focused) == "Drain a"
        await seen.page.keyboard.press("Shift+Tab")
        assert await seen.page.evaluate(focused) == "Ready a"
        await seen.page.keyboard.press("Space")
        await seen.shows("#parked-words", "Nothing is parked")
        assert await asyncio.gather(*scene._asked) == [200] * (SLOTS + 1)


async def test_a_raised_limit_wakes_the_parked(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await full(scene, 3)
        await seen.find("summary[aria-label='Change the limit of a']").click()
        # The number is selected, so that typing replaces it.
        await seen.page.wait_for_function("() => document.activeElement.type === 'number'")
        await seen.page.keyboard.type(str(SLOTS + 2))
        await seen.page.keyboard.press("Enter")
        await seen.shows(POOL, f"{SLOTS + 2} / {SLOTS + 2}")
        assert (await scene.running.state())["queue_total_waiters"] == 1


async def test_a_refused_change_is_said_in_the_router_s_words(
    scene: Scene, browser: Browser
) -> None:
    async with watching(browser, scene.url) as seen:
        seen.expected.append("status of 404")
        await seen.page.wait_for_selector("#backends > li")
        await seen.page.route(
            "**/api/lb/backends/a",
            lambda route: route.continue_(url=f"{scene.url}/api/lb/backends/nobody"),
        )
        await seen.button("Drain a").click()
        await seen.shows("#backend-error", "nobody")


async def test_names_from_outside_are_text(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        scene.ask(3, HOSTILE)
        await seen.shows("#parked", HOSTILE)
        await seen.shows("#pools", HOSTILE)
        await seen.shows("#backends", HOSTILE)
        await seen.page.select_option("#history-pool", label=HOSTILE)
        assert await seen.find("main img").count() == 0


EXPLAINED = [
    ("m", "Hello", "dispatch", "It would be sent to a at once."),
    (HOSTILE, "word " * 500, "refuse", "413 request_too_large"),
    ("nobody", "Hello", "refuse", "503 no_backends"),
]


@pytest.mark.parametrize(("model", "text", "decision", "words"), EXPLAINED)
async def test_a_pasted_body_is_explained(
    scene: Scene, browser: Browser, model: str, text: str, decision: str, words: str
) -> None:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    async with watching(browser, scene.url) as seen:
        await seen.find("#explain-body").fill(body)
        await seen.button("Explain").click()
        await seen.shows("#decision", words)
        assert await seen.find("#decision").get_attribute("data-decision") == decision
        assert await seen.find("#explain-backends li").count() == 2
        assert (await scene.running.state())["dispatch_counts"] == {"a": 0, "b": 0}


async def test_explain_says_what_it_would_park_and_what_is_not_json(
    scene: Scene, browser: Browser
) -> None:
    async with watching(browser, scene.url) as seen:
        await full(scene, 2)
        # The example stands there before anybody types.
        await seen.page.wait_for_function("() => document.getElementById('explain-body').value")
        await seen.button("Explain").click()
        await seen.shows("#decision", "It would be parked; 2 requests are parked")
        await seen.find("#explain-body").fill('{"model": }')
        await seen.button("Explain").click()
        await seen.shows("#explain-error", "not JSON")
        assert not await seen.find("#explanation").is_visible()


async def test_the_slot_trap_is_said_in_words(tmp_path: Path, browser: Browser) -> None:
    server = SimulatedServer(
        [EngineConfig.from_mapping({"personality": "gguf", "max_num_seqs": 2, "served_name": "m"})]
    )
    url = await server.start(host="127.0.0.1", port=0)
    yaml = f"""
backends: [{{name: g, kind: gguf, url: "{url}", models: [m], max_concurrency: 4}}]
"""
    try:
        async with (
            running_router(yaml, tmp_path) as running,
            watching(browser, running.url) as seen,
        ):
            await seen.shows("#backends .warnings", "max_concurrency of g is 4")
            await seen.shows("#backends", "2 slots")
            free = seen.find("#backends .slots .free")
            assert await free.count() == 4 + 2
            await server.close()
            await seen.shows("#backends .health", "down")
            assert await free.count() == 0, "a server that is down has no free slots"
    finally:
        await server.close()


async def test_a_router_that_drains_goes_and_comes_back_is_seen_to(
    tmp_path: Path, browser: Browser
) -> None:
    async with HeldEngine() as engine:
        config = tmp_path / "backends.yaml"
        config.write_text(
            f'backends: [{{name: a, kind: openai, url: "{engine.url}", models: [m]}}]'
        )
        router = await RouterProcess.start(cwd=tmp_path)
        port = router.url.rpartition(":")[2]
        again: RouterProcess | None = None
        try:
            async with watching(browser, router.url) as seen:
                # A router that is gone cannot be asked without the browser's saying so.
                seen.expected.append("net::ERR_")
                asking = asyncio.create_task(post(router.url))
                await seen.shows(POOL, "1 / 32")
                stopping = asyncio.create_task(router.stop(20.0))
                await seen.shows("#banner", "draining")
                engine.release_all()
                assert (await asking, await stopping) == (200, 0)
                await seen.shows("#banner", "cannot be reached since")
                assert await seen.find("#banner").get_attribute("role") == "alert"
                again = await RouterProcess.start("--port", port, cwd=tmp_path)
                await seen.shows("#connection", "live")
                assert not await seen.find("#banner").is_visible()
                await seen.shows(POOL, "0 / 32")
        finally:
            for process in (router, again):
                if process is not None:
                    await process.stop()


async def post(url: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": []}) as answer,
    ):
        await answer.read()
        return answer.status


async def test_axe_finds_nothing_serious(scene: Scene, browser: Browser) -> None:
    """With everything on the page that can be there: parked, refused, drained, explained."""
    async with watching(browser, scene.url) as seen:
        await full(scene, CEILING)
        assert await scene.ask(1)[0] == 503
        await seen.button("Drain b").click()
        await seen.shows("#backends", "closed: draining")
        await seen.button("Explain").click()
        await seen.shows("#decision", "queue_full")
        await seen.find("#history-details summary").click()
        await seen.find("summary[aria-label='Change the limit of a']").click()
        await seen.page.wait_for_selector("#history-table tbody tr")
        for width, height in (WIDE, NARROW):
            await seen.page.set_viewport_size({"width": width, "height": height})
            for scheme in ("light", "dark"):
                await seen.page.emulate_media(color_scheme=scheme)
                assert await seen.faults_of_access() == [], (width, scheme)
        await seen.page.evaluate("document.getElementById('token-dialog').showModal()")
        assert await seen.faults_of_access() == []


async def test_nothing_makes_the_page_scroll_sideways(scene: Scene, browser: Browser) -> None:
    async with watching(browser, scene.url) as seen:
        await full(scene, CEILING)
        assert await scene.ask(1, "x" * 300)[0] == 503
        await seen.shows("#parked-words", f"{CEILING} requests wait")
        for width in (320, 390, 600, 768, 900, 1000, 1280):
            await seen.page.set_viewport_size({"width": width, "height": 800})
            widths = "[document.documentElement.scrollWidth, innerWidth]"
            found, most = await seen.page.evaluate(widths)
            assert found <= most, width


async def test_a_hidden_tab_holds_no_connection(scene: Scene, browser: Browser) -> None:
    """Browsers allow six connections a host: six forgotten tabs would block the seventh."""
    async with watching(browser, scene.url) as seen:
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        await seen.page.evaluate(hide, True)
        await full(scene, 2)
        await asyncio.sleep(0.5)
        assert f"0 / {CEILING}" in await seen.find(POOL).first.inner_text()
        await seen.page.evaluate(hide, False)
        await seen.shows(POOL, f"2 / {CEILING}")


async def test_the_pictures_of_the_docs_can_be_taken(tmp_path: Path, browser: Browser) -> None:
    taken = await take(browser, tmp_path, 1.0)
    assert {path.name for path in taken} == {path.name for path in IMAGES.glob("dashboard*.png")}
    for path in taken:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 5_000 < path.stat().st_size < 250_000
