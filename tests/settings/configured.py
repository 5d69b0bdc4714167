"""How the settings tests read a configuration: text in, a result or its faults out."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.settings import ConfigErrors, Configuration, load


def configure(
    directory: Path,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> Configuration:
    """Return what `load` makes of a file, an environment and flags."""
    if text is not None:
        (directory / "backends.yaml").write_text(text, encoding="utf-8")
    return load(flags or {}, environ or {}, directory)


def faults(
    directory: Path,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> list[str]:
    """Return the faults that stop a configuration; it must have some."""
    with pytest.raises(ConfigErrors) as caught:
        configure(directory, text, environ, flags)
    return [str(problem) for problem in caught.value.problems]
