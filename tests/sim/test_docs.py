"""The page that explains the simulator, against the simulator."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lifeboat.sim.catalogue import load_hardware, load_model
from lifeboat.sim.cost import CostModel
from lifeboat.sim.faults import FaultMode
from lifeboat.sim.kv import BLOCK_TOKENS

PAGE = Path(__file__).parents[2] / "docs/explanation/simulated-engine.md"


def test_every_fault_is_in_the_table_and_the_table_has_no_other() -> None:
    table = PAGE.read_text().split("## Faults", 1)[1].split("##", 1)[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(FaultMode)


def test_the_files_that_the_page_shows_can_be_used(tmp_path: Path) -> None:
    model, card = re.findall(r"```ya?ml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "model.yaml").write_text(model)
    (tmp_path / "card.yaml").write_text(card)
    cost = CostModel(
        load_model(str(tmp_path / "model.yaml")), load_hardware(str(tmp_path / "card.yaml"))
    )
    assert cost.kv_blocks(BLOCK_TOKENS) > 0


@pytest.mark.parametrize(("users", "context", "milliseconds"), [(1, 132, 0.45), (24, 132, 1.46)])
def test_the_figures_that_the_page_names_are_right(
    users: int, context: int, milliseconds: float
) -> None:
    assert f"{milliseconds} ms" in PAGE.read_text()
    cost = CostModel(load_model("gpt-oss-20b"), load_hardware("b200"))
    assert cost.step_s([(1, context)] * users) * 1e3 == pytest.approx(milliseconds, abs=0.005)
