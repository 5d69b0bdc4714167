"""Models and cards as data files: those that come with Lifeboat, and the user's own.

A name means a file of this package's `models/` or `hardware/`; anything that looks like a path
(ends in .yaml or .yml, or has a separator) is read from there. The format is explained in
docs/explanation/simulated-engine.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from lifeboat.sim.cost import Attention, Hardware, LayerGroup, Model, Precision, WeightStream
from lifeboat.sim.problems import ConfigError, Fields, Problem

_Entry = TypeVar("_Entry", Model, Hardware)


def model_names() -> list[str]:
    """Return the names of the models that come with Lifeboat."""
    return _names("models")


def hardware_names() -> list[str]:
    """Return the names of the cards that come with Lifeboat."""
    return _names("hardware")


@lru_cache(maxsize=64)
def load_model(name: str) -> Model:
    """Return a model by name or path of a YAML file; raises ConfigError."""
    return _load("model", "models", name, _model)


@lru_cache(maxsize=64)
def load_hardware(name: str) -> Hardware:
    """Return a card by name or path of a YAML file; raises ConfigError."""
    return _load("hardware", "hardware", name, _hardware)


def looks_like_path(name: str) -> bool:
    """Whether a model or card is given as a file of the user's own."""
    return name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name


def _names(folder: str) -> list[str]:
    entries = (files("lifeboat.sim") / folder).iterdir()
    return sorted(entry.name[:-5] for entry in entries if entry.name.endswith(".yaml"))


def _load(
    key: str, folder: str, name: str, build: Callable[[Mapping[str, Any], str], _Entry]
) -> _Entry:
    if looks_like_path(name):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                [
                    Problem(
                        key, name, f"the file cannot be read ({error.strerror})", "Check the path."
                    )
                ]
            ) from None
    else:
        known = _names(folder)
        if name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"Did you mean {near[0]}?" if near else "Or give the path of a YAML file."
            raise ConfigError([Problem(key, name, f"known are {', '.join(known)}", remedy)])
        text = (files("lifeboat.sim") / folder / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            [Problem(key, name, f"the file is not YAML ({error})", "Mend the file.")]
        ) from None
    if not isinstance(data, dict):
        raise ConfigError([Problem(key, name, "the file must hold a mapping", "See the docs.")])
    return build(cast("Mapping[str, Any]", data), f"{name}: ")


def _model(data: Mapping[str, Any], path: str) -> Model:
    fields = Fields(data, path)
    name = fields.text("name", "")
    if not name:
        fields.complain("name", "it is needed", "Write name: my-model.")
    source = fields.text("source", "not given")
    hidden = fields.whole("hidden_size", 4096, least=1)
    context = fields.whole("max_context", None, least=1)
    if context is None and data.get("max_context") is None:
        fields.complain("max_context", "it is needed", "Write max_context: 131072.")
    streams = _streams(fields, fields.take("weights"), path)
    attention = _attention(fields, fields.take("attention"), path)
    if streams and attention and attention.precision not in {s.precision for s in streams}:
        fields.complain(
            "attention",
            "its precision must be that of a weight stream",
            f"Use {streams[0].precision}.",
        )
    fields.finish()
    assert hidden and context and attention is not None
    return Model(name, source, hidden, context, streams, attention)


def _streams(outer: Fields, entries: Any, path: str) -> tuple[WeightStream, ...]:
    if not isinstance(entries, list) or not entries:
        outer.complain("weights", "it must be a list of weight streams", "See the docs.")
        return ()
    streams: list[WeightStream] = []
    for at, entry in enumerate(cast("list[Any]", entries)):
        fields = _inner(outer, "weights", entry, f"{path}weights[{at}].")
        if fields is None:
            continue
        precision = fields.member("precision", Precision, Precision.BF16)
        active = fields.number("active_params", 0.0, above=0.0)
        resident = fields.number("resident_params", active, above=0.0)
        if not active:
            fields.complain("active_params", "it is needed", "Write active_params: 8.0e+9.")
        experts = fields.whole("experts", 0, least=0) or 0
        per_token = fields.whole("experts_per_token", 0, least=0) or 0
        if experts and not 0 < per_token < experts:
            fields.complain(
                "experts_per_token", "it must be between 1 and experts - 1", "See the model card."
            )
        _close(outer, fields)
        streams.append(WeightStream(precision, active, resident, experts, per_token))
    return tuple(streams)


def _attention(outer: Fields, entry: Any, path: str) -> Attention | None:
    fields = _inner(outer, "attention", entry, f"{path}attention.")
    if fields is None:
        return None
    precision = fields.member("precision", Precision, Precision.BF16)
    sizes = {key: fields.whole(key, None, least=1) for key in ("heads", "head_dim", "kv_heads")}
    for key, size in sizes.items():
        if size is None and not any(p.key.endswith(f".{key}") for p in fields.problems):
            fields.complain(key, "it is needed", f"Write {key}: 8.")
    kv_precision = fields.member("kv_precision", Precision, precision)
    groups: list[LayerGroup] = []
    layers = fields.take("layers")
    for at, layer in enumerate(cast("list[Any]", layers) if isinstance(layers, list) else []):
        inner = _inner(fields, "layers", layer, f"{path}attention.layers[{at}].")
        if inner is None:
            continue
        count = inner.whole("count", None, least=1)
        window = inner.whole("window", None, least=1)
        if count is None:
            inner.complain("count", "it is needed, at least 1", "Write count: 32.")
        _close(fields, inner)
        groups.append(LayerGroup(count or 1, window))
    if not groups:
        fields.complain(
            "layers", "it must be a list of layer groups", "Write layers: [{count: 32}]."
        )
    _close(outer, fields)
    heads, head_dim, kv_heads = (sizes[key] or 1 for key in ("heads", "head_dim", "kv_heads"))
    return Attention(precision, heads, head_dim, kv_heads, kv_precision, tuple(groups))


def _hardware(data: Mapping[str, Any], path: str) -> Hardware:
    fields = Fields(data, path)
    name = fields.text("name", "")
    if not name:
        fields.complain("name", "it is needed", "Write name: my-card.")
    source = fields.text("source", "not given")
    bandwidth = fields.number("bandwidth", 0.0, above=0.0)
    memory = fields.number("memory_bytes", 0.0, above=0.0)
    for key, figure in (("bandwidth", bandwidth), ("memory_bytes", memory)):
        if not figure and data.get(key) is None:
            fields.complain(key, "it is needed", f"Write {key}: 8.0e+12.")
    rates: dict[Precision, float] = {}
    inner = _inner(fields, "flops", fields.take("flops"), f"{path}flops.")
    if inner is not None:
        for precision in Precision:
            rate = inner.number(precision, 0.0, above=0.0)
            if rate:
                rates[precision] = rate
        if Precision.BF16 not in rates:
            inner.complain("bf16", "it is needed: wider than all others", "Write bf16: 1.0e+15.")
        _close(fields, inner)
    fields.finish()
    return Hardware(name, source, rates, bandwidth, memory)


def _inner(outer: Fields, key: str, entry: Any, path: str) -> Fields | None:
    if isinstance(entry, dict):
        return Fields(cast("Mapping[str, Any]", entry), path)
    outer.complain(key, "it must be a mapping", "See the docs.")
    return None


def _close(outer: Fields, inner: Fields) -> None:
    """Hand the problems of a nested mapping to the outer one."""
    try:
        inner.finish()
    except ConfigError as error:
        outer.problems += error.problems
