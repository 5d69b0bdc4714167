"""The commands as an operator meets them: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import lifeboat
from lifeboat.cli.main import main
from lifeboat.cli.remote import default_url
from lifeboat.core.rejections import REJECTIONS
from lifeboat.settings.table import SETTINGS

STATE = {
    "routing_mode": "queue-all",
    "queue_enabled": True,
    "queue_total_waiters": 7,
    "uptime_sec": 12.3,
    "version": "9.9",
    "draining": True,
    "reject_counts": {"gate": 3, "queue_full": 2},
    "warnings": [{"backend": "sim-a", "message": "sim-a has more seats than slots"}],
    "pools": {
        "m": {
            "in_flight": 3,
            "effective_concurrency": 64,
            "queue_depth": 7,
            "queue_limit": 256,
            "wait_p95_sec": 1.25,
            "dispatched": 120,
            "rejected": {"queue_full": 2, "gate": 3},
        }
    },
    "backends": {
        "sim-a": {
            "kind": "simulated",
            "state": "ready",
            "health": "up",
            "in_flight": 3,
            "effective_limit": None,
            "limit_reason": "ungated",
            "dispatched": 120,
        }
    },
}


class _Router(BaseHTTPRequestHandler):
    """Answers the state, and nothing else."""

    def do_GET(self) -> None:
        known = self.path == "/api/lb/state"
        body = json.dumps(STATE).encode() if known else b"{}"
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def router_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Router)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def closed_url() -> str:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Router)
    server.server_close()
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    return CliRunner()


def call(runner: CliRunner, *arguments: str, **environ: str) -> Result:
    result = runner.invoke(main, arguments, env=environ)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# ---- check ---------------------------------------------------------------------------------------


def test_check_of_a_valid_file_says_so(run: CliRunner) -> None:
    Path("mine.yaml").write_text("backends: [{url: 'http://h:1'}]\nmode: superfast\n")
    result = call(run, "check", "mine.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "mine.yaml is valid: mode superfast, 1 backend\n"


QUEUED = """
queue: {enabled: true, ttl: 20s, max_depth: %d}
backends:
  - {name: s, kind: simulated, models: [m], max_concurrency: 4, simulate: {time_scale: 150}}
  - {name: u, url: "http://h:1", models: [other]}
"""
"""The simulated one serves 0.33 requests a second: 6 in 20 s."""


@pytest.mark.parametrize(("depth", "warned"), [(6, False), (7, True)])
def test_check_warns_of_a_ceiling_that_cannot_drain_and_says_what_each_queue_needs(
    run: CliRunner, depth: int, warned: bool
) -> None:
    Path("backends.yaml").write_text(QUEUED % depth)
    result = call(run, "check")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1:] == [
        f"queue of {name}: up to {depth} for 20 s each, all served in time from "
        f"{depth / 20:.3g} requests a second on"
        for name in ("m", "other")
    ]
    lines = result.stderr.splitlines()
    assert len(lines) == warned
    if warned:
        assert lines[0].startswith("warning: the queue of m may hold 7 requests, but its simulated")
        assert "serve 6 of usual length within its TTL of 20 s" in lines[0]


def test_check_prints_every_error_and_every_warning_and_exits_2(run: CliRunner) -> None:
    Path("backends.yaml").write_text("mode: fast\nport: 0x\n")
    result = call(run, "check", LIFEBOAT_HOSTS="x")
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "error", "error", "warning", "2 errors in the configuration",
    ]  # fmt: skip


def test_check_without_any_configuration_says_what_would_start(run: CliRunner) -> None:
    result = call(run, "check")
    assert result.exit_code == 0
    assert "embedded simulated backends sim-a and sim-b" in result.stdout


def test_check_show_prints_each_setting_with_its_source_but_no_secret(run: CliRunner) -> None:
    result = call(run, "check", "--show", LIFEBOAT_ADMIN_TOKEN="hush", LIFEBOAT_LB_MODE="superfast")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["mode", "superfast", "environment"] in lines
    assert ["queue_ttl_s", "30.0", "default"] in lines
    assert ["admin_token", "(hidden)", "environment"] in lines
    assert "hush" not in result.stdout


# ---- serve ---------------------------------------------------------------------------------------


def test_serve_offers_every_setting_that_has_a_flag(run: CliRunner) -> None:
    text = call(run, "serve", "--help").stdout
    for row in SETTINGS:
        assert row.flag is None or row.flag in text
        assert row.env in text or row.from_file
        assert not row.from_file or row.file_flag in text


def test_serve_with_a_faulty_configuration_exits_2_before_anything_starts(run: CliRunner) -> None:
    result = call(run, "serve", "--queue-ttl", "soon", "--backend", "nowhere", "--no-redispatch")
    assert result.exit_code == 2
    assert "flag: --queue-ttl = 'soon'" in result.stderr
    assert "flag: --backend.url = 'nowhere'" in result.stderr


def test_an_unknown_flag_or_command_exits_2(run: CliRunner) -> None:
    assert call(run, "serve", "--quick").exit_code == 2
    assert call(run, "sail").exit_code == 2


# ---- rejections ----------------------------------------------------------------------------------


def test_rejections_prints_the_table_of_the_core(run: CliRunner) -> None:
    printed = json.loads(call(run, "rejections", "--json").stdout)["rejections"]
    assert [(row["reason"], row["status"], row["code"], row["advice"]) for row in printed] == [
        (row.reason.value, row.status, row.wire_reason, row.advice) for row in REJECTIONS.values()
    ]
    text = call(run, "rejections").stdout
    for row in REJECTIONS.values():
        assert f"{row.status}  {row.wire_reason or '(no reason: the gate)'}\n" in text


def test_rejections_of_a_running_router_come_with_its_counts(
    run: CliRunner, router_url: str
) -> None:
    text = call(run, "rejections", "--url", router_url).stdout
    assert "503  (no reason: the gate)  x 3\n" in text
    assert "503  queue_full  x 2\n" in text
    assert "504  queue_timeout  x 0\n" in text
    rows = json.loads(call(run, "rejections", "--json", "--url", router_url).stdout)["rejections"]
    assert {row["reason"]: row["count"] for row in rows}["gate"] == 3


# ---- status --------------------------------------------------------------------------------------


def test_status_prints_mode_pools_backends_and_warnings(run: CliRunner, router_url: str) -> None:
    result = call(run, "status", "--url", router_url)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.stdout.startswith(
        "lifeboat 9.9, up 12 s, mode queue-all, queue on, 7 parked, draining\n"
    )
    assert ["m", "3", "64", "7", "256", "1.25", "s", "120", "5"] in lines
    assert ["sim-a", "simulated", "ready", "up", "3", "none", "ungated", "120"] in lines
    assert "more seats than slots" in result.stderr


def test_status_json_is_the_state_itself(run: CliRunner, router_url: str) -> None:
    assert json.loads(call(run, "status", "--json", "--url", router_url).stdout) == STATE


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "http://127.0.0.1:8400"),
        ({"HOST": "0.0.0.0"}, "http://127.0.0.1:8400"),
        ({"HOST": "::"}, "http://[::1]:8400"),
        ({"HOST": "::1", "PORT": "9"}, "http://[::1]:9"),
        ({"HOST": "router", "PORT": "9"}, "http://router:9"),
        ({"HOST": "router", "ADMIN_ADDR": "127.0.0.1:8401"}, "http://127.0.0.1:8401"),
        ({"ADMIN_ADDR": "0.0.0.0:8401"}, "http://127.0.0.1:8401"),
    ],
)
def test_the_address_comes_from_the_routers_own_variables(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(f"LIFEBOAT_{name}", value)
    assert default_url() == expected


def test_the_url_may_leave_out_its_scheme(run: CliRunner, router_url: str) -> None:
    assert call(run, "status", "--url", router_url.removeprefix("http://")).exit_code == 0


def test_no_router_is_said_clearly_and_exits_2(run: CliRunner, closed_url: str) -> None:
    for command in ("status", "rejections"):
        result = call(run, command, "--url", closed_url)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"no router answers at {closed_url}" in result.stderr
        assert "lifeboat serve" in result.stderr


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:port", "http://h:0"])
def test_an_address_that_cannot_be_one_is_a_wrong_call(run: CliRunner, url: str) -> None:
    told = run.invoke(main, ["status", "--url", url])
    assert told.exit_code == 2
    for words in ("--url", url, "must be a URL, http://HOST:PORT"):
        assert words in told.stderr, told.stderr


def test_a_password_in_an_address_is_not_repeated(run: CliRunner) -> None:
    told = run.invoke(main, ["status", "--url", "http://me:sesame@h"])
    assert (told.exit_code, "sesame" in told.stderr) == (2, False)


def test_a_wrong_address_of_the_environment_names_its_variables(
    run: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFEBOAT_PORT", "many")
    told = run.invoke(main, ["status"])
    assert told.exit_code == 2
    assert "LIFEBOAT_PORT" in told.stderr and "http://127.0.0.1:many" in told.stderr


def test_another_server_is_told_from_a_router(run: CliRunner, router_url: str) -> None:
    result = call(run, "status", "--url", f"{router_url}/elsewhere")
    assert result.exit_code == 2
    assert "is it a Lifeboat router's address?" in result.stderr


# ---- the command itself --------------------------------------------------------------------------


def test_version_is_printed_both_ways(run: CliRunner) -> None:
    assert call(run, "--version").stdout == f"lifeboat {lifeboat.__version__}\n"
    assert call(run, "version").stdout.startswith(f"lifeboat {lifeboat.__version__} (Python 3.")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_no_color_is_respected(run: CliRunner, no_color: str, coloured: bool) -> None:
    result = run.invoke(main, ["rejections"], env={"NO_COLOR": no_color}, color=True)
    assert ("\x1b[" in result.stdout) is coloured


def test_the_command_starts_without_the_heavy_libraries() -> None:
    program = (
        "import sys, lifeboat.cli.main, lifeboat.cli.serve, lifeboat.cli.status;"
        "print([name for name in ('aiohttp', 'asyncio', 'tiktoken', 'prometheus_client', 'orjson')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("{kind: simulated, name: s, simulate: {model: nope}}", "nope"),
        ("{kind: simulated, name: s, simulate: {zzz: 1}}", "zzz"),
        ('{name: s, url: "https://127.0.0.1:1", tls: {ca_file: /nowhere/ca.pem}}', "ca.pem"),
    ],
)
def test_check_finds_what_would_keep_a_backend_from_starting(
    run: CliRunner, backend: str, said: str
) -> None:
    Path("backends.yaml").write_text(f"backends: [{backend}]\n")
    result = run.invoke(main, ["check"])
    assert result.exit_code == 2
    assert said in result.output
