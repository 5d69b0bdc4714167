"""The storm of bench/storm, as long as CI can spare: `python -m bench.storm` is the whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.storm.storm import storm

SECONDS = 5.0
SEED = 5


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_no_law_is_broken_in_a_short_storm(tmp_path: Path) -> None:
    found = await storm(SECONDS, SEED, tmp_path)
    assert found.laws.faults() == []
    assert int(found.figures["requests"]) > 100
