"""Engine configurations from files: one engine or a list in a file, or a directory of such files.

    model: gpt-oss-20b          # the options of docs/explanation/simulated-engine.md
    max_num_seqs: 16

or

    models:
      - {model: gpt-oss-20b}
      - {model: llama-3.1-8b, hardware: h100}

A model or card that is a relative path is looked for beside the file that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from lifeboat.sim.catalogue import looks_like_path
from lifeboat.sim.config import EngineConfig
from lifeboat.sim.problems import ConfigError, Problem


def load_engines(path: Path, overrides: Mapping[str, Any]) -> list[EngineConfig]:
    """Return the engines of a file, or of every .yaml and .yml file in a directory, by name.

    overrides: options that replace those of every engine.
    Raises ConfigError with the problems of all files.
    """
    problems: list[Problem] = []
    configs: list[EngineConfig] = []
    for file in _files(path):
        try:
            for where, mapping in _mappings(file):
                located = _beside(mapping, file.parent)
                configs.append(EngineConfig.from_mapping({**located, **overrides}, where))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return configs


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")])
    if not files:
        raise ConfigError(
            [Problem("--config", str(path), "the directory has no .yaml file", "Add one.")]
        )
    return files


def _mappings(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the engines that a file describes, each with the prefix of its keys."""
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(file, f"the file cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _unreadable(file, f"the file is not YAML ({error})") from None
    if not isinstance(data, dict):
        raise _unreadable(file, "the file must hold a mapping")
    mapping = cast("dict[str, Any]", data)
    if "models" not in mapping:
        return [(f"{file.name}: ", mapping)]
    entries = mapping["models"]
    others = sorted(str(key) for key in mapping if key != "models")
    if others:
        raise _unreadable(file, f"beside `models` nothing else may stand ({', '.join(others)})")
    if not isinstance(entries, list) or not entries:
        raise _unreadable(file, "`models` must be a list of mappings")
    rows = cast("list[Any]", entries)
    if not all(isinstance(entry, dict) for entry in rows):
        raise _unreadable(file, "every entry of `models` must be a mapping")
    return [(f"{file.name}: models[{at}].", entry) for at, entry in enumerate(rows)]


def _unreadable(file: Path, rule: str) -> ConfigError:
    return ConfigError([Problem("--config", str(file), rule, "See `lifeboat sim --help`.")])


def _beside(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options with relative paths of model and card files made absolute."""
    located = dict(mapping)
    for key in ("model", "hardware"):
        name = located.get(key)
        if isinstance(name, str) and looks_like_path(name):
            located[key] = str(folder / name)
    return located
