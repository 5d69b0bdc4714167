"""Reads `models:`: aliases, defaults, rates and the queue of single pools.

Held by tests/settings/test_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lifeboat.core.vocabulary import Capability
from lifeboat.settings.entries import MODEL, MODEL_ENTRIES
from lifeboat.settings.problems import Findings, nearest
from lifeboat.settings.reading import as_mapping, read_entry
from lifeboat.settings.scaling import check_scaling, take_scaling
from lifeboat.settings.shapes import BackendConfig, ModelConfig, QueueOverride
from lifeboat.settings.values import BadValueError
from lifeboat.settings.yamlfile import Document, KeyPath, dotted

_QUEUE_ATTRIBUTES = ("enabled", "ttl_s", "max_depth")


def read_models(
    raw: object, backends: Sequence[BackendConfig], document: Document, findings: Findings
) -> tuple[ModelConfig, ...]:
    """Return the models of the file; faults go into `findings`."""
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        where, remedy = document.where(("models",)), "Write `NAME: {...}` below it."
        findings.refuse(where, "models", raw, "must be a mapping of model names", remedy)
        return ()
    models: dict[str, ModelConfig] = {}
    for name, entry in as_mapping(cast("object", raw)).items():
        model = _read_model(name, entry, document, findings)
        if model is not None:
            models[name] = model
    for model in models.values():
        if model.scaling is not None:
            check_scaling(model.name, model.scaling, backends, document, findings)
        if model.alias_of is not None:
            _check_alias(model, model.alias_of, models, backends, document, findings)
    _check_defaults(models, backends, document, findings)
    return tuple(models.values())


def _read_model(
    name: str, entry: object, document: Document, findings: Findings
) -> ModelConfig | None:
    path: KeyPath = ("models", name)
    try:
        MODEL.parse(name)
    except BadValueError:
        where, rule = document.where(path), f"must be {MODEL.rule}"
        findings.refuse(where, dotted(path), name, rule, "Change the name.")
        return None
    before = len(findings.problems)
    values = read_entry(entry, MODEL_ENTRIES, path, document, findings)
    if len(findings.problems) > before:
        return None
    if "alias_of" in values and len(values) > 1:
        rule = "is an alias with settings of its own"
        remedy = f"Move them to the model {values['alias_of']!r}: aliases share its settings."
        findings.refuse(document.where(path), dotted(path), None, rule, remedy)
        return None
    queue = {key: values.pop(key) for key in _QUEUE_ATTRIBUTES if key in values}
    scaling = take_scaling(values, path, document, findings)
    override = QueueOverride(**cast("dict[str, Any]", queue))
    return ModelConfig(name, queue=override, scaling=scaling, **cast("dict[str, Any]", values))


def _check_alias(
    model: ModelConfig,
    target: str,
    models: Mapping[str, ModelConfig],
    backends: Sequence[BackendConfig],
    document: Document,
    findings: Findings,
) -> None:
    """Refuse an alias of an alias (a circle too) or of itself, and one that hides a real model."""
    path: KeyPath = ("models", model.name, "alias_of")
    where, key = document.where(path), dotted(path)
    if target == model.name:
        findings.refuse(where, key, target, "names itself", "Name the model that it stands for.")
        return
    aimed = models.get(target)
    if aimed is not None and aimed.alias_of is not None:
        remedy = "Name the model itself: an alias of an alias, or a circle, is never followed."
        findings.refuse(where, key, target, "is an alias itself", remedy)
        return
    owner = next((one.name for one in backends if model.name in (one.models or ())), None)
    if owner is not None:
        rule = f"hides the model {model.name!r} of backend {owner!r}"
        findings.refuse(where, key, target, rule, "Rename the alias, or take the model out.")
    known = {name for one in backends for name in one.models or ()}
    listed_by_all = all(one.models is not None for one in backends)
    if aimed is None and target not in known and listed_by_all:
        near = nearest(target, known)
        hint = f"; the nearest is {near!r}" if near else ""
        findings.warn(f"{where}: {key}: no configured backend serves {target!r}{hint}")


def _check_defaults(
    models: Mapping[str, ModelConfig],
    backends: Sequence[BackendConfig],
    document: Document,
    findings: Findings,
) -> None:
    """Refuse two defaults for one capability, as far as the backends list their models."""
    first: dict[Capability, str] = {}
    for model in models.values():
        if not model.default:
            continue
        served = {
            word for one in backends if model.name in (one.models or ()) for word in one.serves
        }
        for capability in sorted(served):
            other = first.setdefault(capability, model.name)
            if other != model.name:
                path: KeyPath = ("models", model.name, "default")
                rule = f"{other!r} is the default for {capability.value} already"
                findings.refuse(document.where(path), dotted(path), True, rule, "Keep one of them.")
                break
