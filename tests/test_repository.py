"""What the repository says of itself: pages current, links alive, no host in the locks."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

from lifeboat.cli.main import main
from lifeboat.settings.table import environment_names
from tests.settings.configured import configure

ROOT = Path(__file__).resolve().parents[1]


def _docs_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current() -> None:
    assert _docs_build().stale_pages() == []


def test_no_link_of_the_docs_leads_nowhere() -> None:
    assert list(_docs_build().broken_links()) == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_pins_every_package_and_names_no_host(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 10
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9][0-9A-Za-z.]*( ; .+)?", line), line
        assert "://" not in line


WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEPLOYED = [path for path in sorted((ROOT / "deploy").iterdir()) if path.is_file()]


def command_variables() -> set[str]:
    """Return the variables that are no settings of the router but options of a command."""
    context = click.Context(main)
    commands = [main.get_command(context, name) for name in main.list_commands(context)]
    options = [option for command in commands if command for option in command.params]
    return {str(option.envvar) for option in options if option.envvar}


@pytest.mark.parametrize("path", [*WRITTEN, *DEPLOYED], ids=lambda path: path.name)
def test_every_variable_that_is_written_about_exists(path: Path) -> None:
    named = set(re.findall(r"LIFEBOAT_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")))
    assert named <= environment_names() | command_variables()


def _yaml_examples() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in WRITTEN]
    return [block for text in texts for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize("example", _yaml_examples())
def test_every_example_of_a_configuration_would_start(tmp_path: Path, example: str) -> None:
    assert configure(tmp_path, example, {"GGUF_KEY": "k"}).warnings == ()


def test_the_documentation_has_examples() -> None:
    assert len(_yaml_examples()) >= 2


@pytest.mark.parametrize("path", ["backends.yaml", "deploy/gguf.yaml"])
def test_every_configuration_that_is_shipped_would_start(tmp_path: Path, path: str) -> None:
    environ = {"GGUF_URL": "http://127.0.0.1:8081", "GGUF_SLOTS": "4"}
    text = (ROOT / path).read_text(encoding="utf-8")
    assert configure(tmp_path, text, environ).warnings == ()


SCRIPTS = [
    ".ci/run",
    *(f"deploy/{do}-{engine}.sh" for do in ("run", "install") for engine in ("gguf", "vllm")),
]


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_stops_at_its_first_failure(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail\n" in text


def test_ci_can_be_executed() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
