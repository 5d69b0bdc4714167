"""`lifeboat simulate` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lifeboat.cli.simulate import simulate
from tests.simulate.worlds import entry

LINE = '{"at": %s, "input_tokens": 100, "output_tokens": 50}\n'


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backends.yaml").write_text(json.dumps({"backends": [entry(max_concurrency=4)]}))
    (tmp_path / "trace.jsonl").write_text("".join(LINE % (at / 100) for at in range(40)))

    (tmp_path / "binary").write_bytes(b"at,input\xff\n")

    def call(*args: str) -> Result:
        return CliRunner().invoke(simulate, list(args))

    return call


def test_modes_and_tries_are_columns(called, tmp_path: Path) -> None:
    result = called(
        "--trace", "trace.jsonl", "--mode", "default", "--mode", "queue-all",
        "--try", "max_concurrency=2", "--try", "max_concurrency=4", "--html", "out.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    head = result.stdout.splitlines()[0]
    assert head.index("mode=default max_concurrency=2") < head.index("mode=queue-all")
    assert "wait, mean" in result.stdout and "parked" in result.stdout
    assert (tmp_path / "out.html").read_text().count("<svg") == 4


def test_json_is_for_scripts(called) -> None:
    result = called("--trace", "trace.jsonl", "--for", "200ms", "--json")
    (run,) = json.loads(result.stdout)["runs"]
    assert run["requests"] == 20 == run["answered"] + sum(run["refused"].values())


def test_without_a_trace_arrivals_are_made_up_from_the_seed(called) -> None:
    args = ("--rate", "50", "--for", "2s", "--json")
    first = called(*args, "--seed", "1").stdout
    assert called(*args, "--seed", "1").stdout == first
    assert called(*args, "--seed", "2").stdout != first


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "--trace FILE or --rate N"),
        (("--trace", "trace.jsonl", "--rate", "1"), "--trace FILE or --rate N"),
        (("--trace", "nowhere"), "'nowhere' does not exist"),
        (("--trace", "binary"), "binary: is no text in UTF-8"),
        (("--trace", "trace.jsonl", "--html", "no/where.html"), "no/where.html: No such file"),
        (("--trace", "trace.jsonl", "--try", "adaptive=perhaps"), "adaptive=perhaps: must be true"),
        (("--trace", "backends.yaml"), "lacks"),
        (("--trace", "trace.jsonl", "--mode", "fast"), "fast"),
        (("--trace", "trace.jsonl", "--try", "x=1"), "changes nothing here"),
        (("--trace", "trace.jsonl", "--try", "hardware=abacus"), "abacus"),
        (("--trace", "trace.jsonl", "--for", "soon"), "'soon' must be a number of seconds"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(called, args: tuple[str, ...], says: str) -> None:
    result = called(*args)
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "[Errno" not in result.output
