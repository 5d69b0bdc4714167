"""A backend that fails at once is the idlest of all, and must not draw the traffic for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.engines import HeldEngine, SayingEngine, error_answer
from tests.fleet_acceptance.crowd import ask_once
from tests.running import backend, backends_yaml, chat_body, running_router

REQUESTS = 200

FAST_FAILURES = {
    "a plain 503": error_answer(b"503 Service Unavailable", {"error": {"message": "no"}}),
    "a page of HTML": (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n"
        b"gone"
    ),
}


@pytest.mark.parametrize("fault", FAST_FAILURES)
@pytest.mark.parametrize("at_once", [1, 4, 16])
async def test_three_of_two_hundred_requests_see_a_backend_that_fails_at_once(
    fault: str, at_once: int, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async with (
        SayingEngine(FAST_FAILURES[fault]) as broken,
        HeldEngine(hold_s=0.002) as well,
    ):
        yaml = backends_yaml(
            backend(broken.url, "broken"), backend(well.url, "well"), queue={"enabled": True}
        )
        async with running_router(yaml, tmp_path) as running:
            left = iter(range(REQUESTS))
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:

                async def client() -> list[int | None]:
                    return [
                        (await ask_once(session, running.url, chat_body())).status for _ in left
                    ]

                found = await asyncio.gather(*(client() for _ in range(at_once)))
            statuses = [status for some in found for status in some]
            assert statuses == [200] * REQUESTS
            seen = len(broken.asked)
            measured(f"{seen} of {REQUESTS} requests saw it")
            # Three failures make a suspect, which gets one trial after a pause of 1 s and one after
            # 2 s more. Those under way when the third fails cannot be called back: among `at_once`
            # requests spread over two backends that is at most half of them.
            took_s = loop.time() - began_at
            trials = (took_s > 1.0) + (took_s > 3.0) + (took_s > 7.0)
            under_way = max(0, at_once // 2 - 1)
            assert 1 <= seen <= 3 + trials + under_way
            assert (await running.state())["backends"]["broken"]["health"] == "suspect"
