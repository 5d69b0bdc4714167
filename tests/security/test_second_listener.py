"""LIFEBOAT_ADMIN_ADDR: what is for operators leaves the first listener, all of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lifeboat.edge.endpoints import ENDPOINTS
from lifeboat.runtime import StartError
from lifeboat.web import static_files
from tests.acceptance.engines import HeldEngine
from tests.running import backend, backends_yaml, running_router
from tests.security.changes import CHANGES

EVERYBODYS = {"/health", "/ready", "/v1/models", "/v1/models/{name}"}
"""Paths of the router's own that both listeners have: load balancers and clients ask for them."""
CONCRETE = {"/v1/models/{name}": "/v1/models/m", "/static/{name}": "/static/app.js"}


async def test_every_path_is_on_the_listener_that_it_is_for(tmp_path: Path) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        environ = {"LIFEBOAT_ADMIN_ADDR": "127.0.0.1:0"}
        async with running_router(yaml, tmp_path, environ) as running:
            first, second = running.url, running.admin_url
            assert first != second
            described = (await running.ask("/openapi.json", method="GET", url=second)).json
            paths = {path for path, calls in described["paths"].items() if "get" in calls}
            assert {*EVERYBODYS, "/metrics", "/api/lb/state", "/api/lb/mode"} <= paths
            paths |= {"/", "/openapi.json", *(f"/static/{name}" for name in static_files())}
            # Never ends.
            paths.discard("/api/lb/state/stream")
            for path in sorted(paths):
                url = CONCRETE.get(path, path)
                public = await running.ask(url, method="GET", url=first)
                assert (public.status == 200) is (path in EVERYBODYS), path
                assert (await running.ask(url, method="GET", url=second)).status == 200, path
            for row in ENDPOINTS:
                path = row.path.replace("{id}", "x").replace("{rest...}", "y")
                answer = await running.ask(path, b"{}", method=row.methods[0], url=second)
                assert answer.status == 404, row.path
            assert not engine.asked


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
async def test_changes_are_made_on_the_second_listener_alone(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    environ = {"LIFEBOAT_ADMIN_ADDR": "127.0.0.1:0"}
    yaml = backends_yaml(backend("http://127.0.0.1:9"))
    async with running_router(yaml, tmp_path, environ) as running:
        call = f"/api/lb/{path}"
        assert (await running.ask(call, body, method=method, url=running.url)).status == 404
        assert (await running.ask(call, body, method=method, url=running.admin_url)).status < 300


async def test_metrics_of_the_second_listener_count_what_the_first_one_served(
    tmp_path: Path,
) -> None:
    async with HeldEngine(hold_s=0.0) as engine:
        yaml = backends_yaml(backend(engine.url))
        environ = {"LIFEBOAT_ADMIN_ADDR": "127.0.0.1:0"}
        async with running_router(yaml, tmp_path, environ) as running:
            assert (await running.ask()).status == 200
            dispatched = 'lifeboat_lb_dispatch_total{backend="a",pool="m"}'
            assert (await running.metrics())[dispatched] == 1


async def test_an_address_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ExceptionGroup) as failed:
            async with running_router(
                backends_yaml(backend("http://127.0.0.1:9")),
                tmp_path,
                {"LIFEBOAT_ADMIN_ADDR": address},
            ):
                raise AssertionError("it started")
        found = failed.value.subgroup(StartError)
        assert found is not None and address in str(found.exceptions[0])
