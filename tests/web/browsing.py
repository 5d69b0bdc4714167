"""A real Chromium on the dashboard: what it logs, asks for and shows."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, Request, async_playwright

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = (1280, 1000)
NARROW = (390, 844)
Scheme = Literal["light", "dark"]
PATIENCE_MS = 10_000


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Debian's Chromium. Fails, and says so, where there is none."""
    path = shutil.which("chromium")
    assert path is not None, "there is no chromium: install Debian's package of that name"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class Watched:
    """A page, and everything it did that it should not have.

    expected: parts of console messages that a test provokes, such as the status of a refused call.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.expected: list[str] = []
        self._faults: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self._faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._faults.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(self.url + "/"):
            self._faults.append(f"asked {request.url}")

    @property
    def faults(self) -> list[str]:
        return [fault for fault in self._faults if not any(part in fault for part in self.expected)]

    def find(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def shows(self, selector: str, text: str) -> None:
        """Wait until the first match holds this text."""
        await self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
            arg=[selector, text],
            timeout=PATIENCE_MS,
        )

    async def figures(self, selector: str) -> dict[str, str]:
        """Return the terms and figures below the first match."""
        return await self.page.evaluate(
            """(selector) => {
                const at = document.querySelector(selector);
                const pairs = [...at.querySelectorAll(".meter, .facts > div")].map((one) => [
                    one.querySelector(".label, dt").textContent,
                    one.querySelector(".figure, dd").textContent,
                ]);
                return Object.fromEntries(pairs);
            }""",
            selector,
        )

    async def faults_of_access(self) -> list[str]:
        """Return what axe-core finds that is serious or worse."""
        found = await Axe().run(self.page)
        return [
            f"{one['id']} ({one['impact']}): {node['html'][:200]} {node['failureSummary'][:300]}"
            for one in found.response["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


@contextlib.asynccontextmanager
async def watching(
    browser: Browser,
    url: str,
    size: tuple[int, int] = WIDE,
    scheme: Scheme = "light",
    prepare: Callable[[Page], Awaitable[None]] | None = None,
    *,
    live: bool = True,
) -> AsyncIterator[Watched]:
    """Open the dashboard; at the end it must have done nothing that it should not.

    prepare: done to the page before it is opened. live: wait until it shows a state.
    """
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
    )
    page = await context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    watched = Watched(page, url)
    try:
        if prepare is not None:
            await prepare(page)
        await page.goto(f"{url}/")
        if live:
            await watched.shows("#connection", "live")
            await page.wait_for_selector("#mode-buttons button")
        yield watched
        assert watched.faults == []
    finally:
        await context.close()
