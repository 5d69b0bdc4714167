"""The written pages against the code: headers, keys, examples, the index."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lifeboat.core import selection
from lifeboat.core.gate import Gate
from lifeboat.core.modes import Mode
from lifeboat.core.rejections import REJECTIONS
from lifeboat.edge import headers
from lifeboat.observe.metric_table import METRICS
from lifeboat.observe.state import Surroundings, state_json
from lifeboat.settings.entries import BACKEND_ENTRIES, MODEL_ENTRIES
from lifeboat.settings.table import SETTINGS
from tests.core.test_selection import Seen
from tests.observe.scenes import view

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_every_page_is_linked_from_the_index(path: Path) -> None:
    name = str(path.relative_to(DOCS))
    assert name == "README.md" or f"({name})" in text_of("README.md")


def test_every_header_that_the_edge_knows_or_writes_is_on_its_page() -> None:
    named = {
        value.decode()
        for name, value in vars(headers).items()
        if isinstance(value, bytes) and name.isupper() and not name.startswith("_")
        if not name.endswith("PREFIX")
    }
    assert {"X-Lifeboat-Wait-ms", "X-Request-ID"} <= named
    source = "".join(path.read_text() for path in (ROOT / "lifeboat" / "edge").glob("*.py"))
    named |= set(re.findall(r'headers\["([\w-]+)"\] = ', source))
    page = text_of("reference/headers.md").lower()
    # Of a WebSocket's handshake, not of an answer.
    for name in sorted(named - {"Upgrade"}):
        assert f"`{name.lower()}" in page, name


def test_every_key_of_the_state_is_on_its_page() -> None:
    state = state_json(view(), Surroundings(version="1", started_at=0.0))
    keys = set(state)
    for group in ("pools", "backends"):
        one = next(iter(state[group].values()))
        keys |= set(one)
        keys |= set(one.get("engine", ()))
    page = text_of("reference/state.md")
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings", [row.env for row in SETTINGS]),
        ("settings", [entry.key for entry in (*BACKEND_ENTRIES, *MODEL_ENTRIES)]),
        ("rejections", [row.wire_reason or row.reason.value for row in REJECTIONS.values()]),
        ("metrics", [row.name for row in METRICS]),
        ("modes", [mode.value for mode in Mode]),
    ],
)
def test_a_reference_page_leaves_none_out(page: str, names: Sequence[str]) -> None:
    text = text_of(f"reference/{page}.md")
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_policy_of_the_how_to_works() -> None:
    [example] = re.findall(
        r"```python\n(.*?)```", text_of("how-to/add-a-selection-policy.md"), re.DOTALL
    )
    scope = {**vars(selection)}
    exec(re.sub(r"^   ", "", example, flags=re.MULTILINE), scope)
    policy: selection.Selection = scope["MostFreeSlots"]()
    candidates = [Seen(1, 4), Seen(90, 100), Seen(0, 2)]
    assert policy.choose(candidates) is candidates[1]
    assert policy.choose([*candidates, Seen(900, None)]).limit is None
    rested, picked = Seen(1, 4, last_pick=1), Seen(1, 4, last_pick=7)
    assert policy.choose([picked, rested]) is rested
    # The page says which argument of the gate it is.
    assert list(inspect.signature(Gate).parameters)[1] == "selection"


SOURCES = [
    path
    for part in ("lifeboat", "bench", "docs", "deploy")
    for path in sorted((ROOT / part).rglob("*"))
    if path.suffix in (".py", ".md", ".sh", ".yaml")
]


def test_every_test_that_is_named_as_a_proof_exists() -> None:
    """`Held by tests/...` in a docstring is a promise."""
    named = {
        (str(path.relative_to(ROOT)), found)
        for path in SOURCES
        for found in re.findall(r"\btests/[\w/]+\.py\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert [(path, test) for path, test in sorted(named) if not (ROOT / test).is_file()] == []
