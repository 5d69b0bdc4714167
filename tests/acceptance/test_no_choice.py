"""A request that names no model where nothing could be meant."""

from __future__ import annotations

import pytest

from tests.running import running_router

ONE = """
backends:
  - {name: sim, kind: simulated, models: [m]}
"""


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/videos"), ("POST", "/v1/images/generations")]
)
async def test_it_is_told_that_no_server_has_the_capability(tmp_path, method, path) -> None:
    async with running_router(ONE, tmp_path) as running:
        body = None if method == "GET" else {"prompt": "a boat"}
        async with running.session.request(method, running.url + path, json=body) as answer:
            assert answer.status == 501
            assert (await answer.json())["error"]["code"] == "no_diffusion_backend"
