"""`lifeboat check`: what `lifeboat serve` would make of a file and of this environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from lifeboat.cli.columns import columns
from lifeboat.cli.findings import print_errors, print_warnings
from lifeboat.settings.load import load
from lifeboat.settings.problems import HIDDEN, ConfigErrors
from lifeboat.settings.shapes import Configuration
from lifeboat.settings.table import SETTINGS, Setting


@click.command()
@click.argument("file", required=False)
@click.option("--show", is_flag=True, help="Print every setting with its value and its source.")
def check(file: str | None, show: bool) -> None:
    """Check a configuration file (backends.yaml) together with the LIFEBOAT_* variables.

    Prints every error and every warning, and which rate each queue needs to drain within its TTL.
    Exit code: 0 it would start, 2 it would not.
    """
    try:
        configuration = load({"config": file}, os.environ, Path.cwd())
    except ConfigErrors as errors:
        print_errors(errors)
        sys.exit(2)
    print_warnings(configuration.warnings)
    faults = _faults_of_backends(configuration)
    if faults:
        for fault in faults:
            click.echo(f"error: {fault}", err=True)
        sys.exit(2)
    if show:
        rows = [_shown(row, configuration) for row in SETTINGS]
        click.echo(columns(("setting", "value", "source"), rows))
    from lifeboat.cli.queues import Queues

    queues = Queues(configuration)
    print_warnings(queues.warnings())
    click.echo("\n".join([_summary(configuration), *queues.needs()]))


def _faults_of_backends(configuration: Configuration) -> list[str]:
    """Return what would keep a backend from starting: its engine's options, its CA file."""
    from lifeboat.embedded import engine_of
    from lifeboat.sim.config import ConfigError

    faults: list[str] = []
    for backend in configuration.backends:
        if backend.embedded:
            try:
                engine_of(backend)
            except ConfigError as error:
                faults.append(f"backend {backend.name!r}: {error}")
        ca_file = backend.tls_ca_file
        if ca_file is not None and not ca_file.is_file():
            faults.append(f"backend {backend.name!r}: tls.ca_file {str(ca_file)!r} is no file")
    return faults


def _shown(row: Setting, configuration: Configuration) -> tuple[str, str, str]:
    settings = configuration.settings
    value: object = getattr(settings, row.name)
    if value is None or value == ():
        text = "-"
    else:
        text = HIDDEN if row.secret else str(value)
    return row.name, text, settings.sources[row.name]


def _summary(configuration: Configuration) -> str:
    path, backends = configuration.path, configuration.backends
    if configuration.simulated_by_default:
        names = " and ".join(backend.name for backend in backends)
        return f"no configuration: would start on the embedded simulated backends {names}"
    source = path.name if path is not None else "the environment"
    count = f"{len(backends)} backend{'' if len(backends) == 1 else 's'}"
    return f"{source} is valid: mode {configuration.settings.mode.value}, {count}"
