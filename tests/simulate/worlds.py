"""Small worlds: a configuration as text, a trace as a list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lifeboat.simulate.cases import Case, run_case
from lifeboat.simulate.figures import Figures
from lifeboat.simulate.traces import Arrival

B200 = {"model": "gpt-oss-20b", "hardware": "b200"}


def entry(name: str = "a", **fields: Any) -> dict[str, object]:
    """Return a simulated backend of the model `m`; its engine's options under `simulate`."""
    simulate = {**B200, "max_num_seqs": 4, **fields.pop("simulate", {})}
    return {"name": name, "kind": "simulated", "models": ["m"], "simulate": simulate, **fields}


def run(
    directory: Path,
    trace: Sequence[Arrival],
    *backends: dict[str, object],
    case: str = "",
    objective_s: float = 2.0,
    **top: object,
) -> Figures:
    path = directory / "backends.yaml"
    path.write_text(json.dumps({"backends": list(backends), **top}))
    return run_case(Case.parse(case), trace, str(path), {}, directory, objective_s)
