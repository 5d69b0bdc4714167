"""Reads `scaling:` of a model: the controller's policy, and what it moves.

Held by tests/settings/test_scaling.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from lifeboat.core.scaling import ScalingPolicy
from lifeboat.settings.problems import Findings
from lifeboat.settings.shapes import BackendConfig, ScalingConfig
from lifeboat.settings.values import BadValueError, JsonSchema
from lifeboat.settings.yamlfile import Document, KeyPath, dotted

_LONGEST_ARGUMENT = 4096

_POLICY = (
    "least", "most", "target", "sustain_s", "startup_s", "scale_down_delay_s", "panic_factor",
)  # fmt: skip
_MEANS = {
    "scaling_backend": "backend",
    "scaling_command": "command",
    "scaling_timeout_s": "timeout_s",
}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A program and its arguments, as a list: there is no shell to split a text."""

    rule: str = "a list of texts: a program and its arguments"

    def parse(self, raw: object, *, plain: bool = False) -> tuple[str, ...]:
        """Return the words."""
        if not isinstance(raw, list) or not raw:
            raise BadValueError("Write [program, argument]" if isinstance(raw, str) else "")
        return tuple(self._word(word) for word in cast("list[object]", raw))

    def _word(self, raw: object) -> str:
        # YAML reads a plain 5 as a number; as an argument it is the text.
        text = str(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else raw
        if not isinstance(text, str) or "\x00" in text or len(text) > _LONGEST_ARGUMENT:
            raise BadValueError
        return text

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}


def take_scaling(
    values: dict[str, object], path: KeyPath, document: Document, findings: Findings
) -> ScalingConfig | None:
    """Take what belongs to `scaling:` out of a model's values; None where nothing is given."""
    policy = {key: values.pop(key) for key in _POLICY if key in values}
    means = {_MEANS[key]: values.pop(key) for key in _MEANS if key in values}
    if not policy and not means:
        return None
    full = (*path, "scaling")

    def refuse(rule: str, remedy: str) -> None:
        findings.refuse(document.where(full), dotted(full), None, rule, remedy)

    if ("backend" in means) == ("command" in means):
        both = "has both a backend and a command" if means.get("command") else "moves nothing"
        refuse(both, "Name either `backend` (an embedded one) or `command`.")
        return None
    if "most" not in policy:
        refuse("has no max", "Say how many replicas there may be at the most.")
        return None
    found = ScalingPolicy(**cast("dict[str, Any]", policy))
    if found.least > found.most:
        refuse(f"has a min of {found.least} above its max of {found.most}", "Swap them.")
        return None
    return ScalingConfig(found, **cast("dict[str, Any]", means))


def check_scaling(
    model: str,
    scaling: ScalingConfig,
    backends: Sequence[BackendConfig],
    document: Document,
    findings: Findings,
) -> None:
    """Refuse a `backend` that is no embedded one with replicas that serves the model."""
    if scaling.backend is None:
        return
    path: KeyPath = ("models", model, "scaling", "backend")
    first = next((one for one in backends if one.name == f"{scaling.backend}-1"), None)
    where, key = document.where(path), dotted(path)
    if first is None or not first.embedded:
        rule = "is no embedded backend with `replicas`"
        remedy = "Give a `kind: simulated` backend without a url that name, and `replicas: 1`."
        findings.refuse(where, key, scaling.backend, rule, remedy)
    elif model not in (first.models or ()):
        rule, remedy = f"does not serve {model!r}", "Add the model to its `models`."
        findings.refuse(where, key, scaling.backend, rule, remedy)
