"""`scaling:` of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.core.scaling import ScalingPolicy
from lifeboat.settings.shapes import ScalingConfig
from tests.settings.configured import configure, faults

BACKENDS = """
backends:
  - {name: sim, kind: simulated, replicas: 2, models: [m]}
  - {name: alone, kind: simulated, models: [m]}
  - {name: far, replicas: 2, url: 'http://h:1', models: [m]}
"""


def scaling_of(directory: Path, text: str) -> ScalingConfig | None:
    return configure(directory, f"{BACKENDS}models: {{m: {{scaling: {text}}}}}\n").models[0].scaling


def test_replicas_of_an_embedded_backend(tmp_path: Path) -> None:
    text = (
        "{backend: sim, min: 0, max: 8, target: 0.5, sustain: 5m, startup: 0, "
        "scale_down_delay: 10m, panic: 0}"
    )
    policy = ScalingPolicy(0, 8, 0.5, 300.0, 0.0, 600.0, 0.0)
    assert scaling_of(tmp_path, text) == ScalingConfig(policy, backend="sim")


def test_a_command_and_the_defaults(tmp_path: Path) -> None:
    text = "{command: [scale, --to, '{desired}', --to, 5], timeout: 2s, max: 3}"
    found = scaling_of(tmp_path, text)
    assert found == ScalingConfig(
        ScalingPolicy(1, 3, 0.7, 300.0, 300.0, 600.0, 2.0),
        command=("scale", "--to", "{desired}", "--to", "5"),
        timeout_s=2.0,
    )


def test_most_models_have_none(tmp_path: Path) -> None:
    assert configure(tmp_path, f"{BACKENDS}models: {{m: {{}}}}\n").models[0].scaling is None


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ("{max: 3}", "moves nothing"),
        ("{backend: sim, command: [x], max: 3}", "has both a backend and a command"),
        ("{backend: sim}", "has no max"),
        ("{backend: sim, min: 4, max: 3}", "has a min of 4 above its max of 3"),
        ("{backend: alone, max: 3}", "is no embedded backend with `replicas`"),
        ("{backend: far, max: 3}", "is no embedded backend with `replicas`"),
        ("{backend: nobody, max: 3}", "is no embedded backend with `replicas`"),
        ("{command: scale it, max: 3}", "Write [program, argument]"),
        ("{command: [], max: 3}", "a list of texts"),
        ("{command: [true], max: 3}", "a list of texts"),
        ("{command: [x], max: 3, target: 0}", "above 0"),
        ("{command: [x], max: 3, target: 1.5}", "at most 1"),
        ("{command: [x], max: 3, replicas: 2}", "is no key known here"),
    ],
)
def test_a_faulty_one_has_one_fault(tmp_path: Path, scaling: str, told: str) -> None:
    found = faults(tmp_path, f"{BACKENDS}models: {{m: {{scaling: {scaling}}}}}\n")
    assert len(found) == 1, found
    assert told in found[0]


def test_a_backend_that_does_not_serve_the_model_is_refused(tmp_path: Path) -> None:
    found = faults(tmp_path, f"{BACKENDS}models: {{n: {{scaling: {{backend: sim, max: 2}}}}}}\n")
    assert len(found) == 1 and "does not serve 'n'" in found[0]
