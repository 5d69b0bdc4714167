"""`lifeboat serve`: the router, with one option for each row of the settings table."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from lifeboat.cli.findings import print_errors
from lifeboat.settings.load import load
from lifeboat.settings.problems import ConfigErrors
from lifeboat.settings.shapes import Configuration
from lifeboat.settings.table import SETTINGS, Setting


def _option(row: Setting) -> click.Option:
    """Return the option of a row; its value goes to the loader as it was typed."""
    text = f"{row.doc} [{row.env}]"
    assert row.flag is not None
    if row.is_boolean:
        negative = f"--no-{row.flag.removeprefix('--')}"
        return click.Option([f"{row.flag}/{negative}", row.name], default=None, help=text)
    metavar = {"s": "SECONDS", "": None}.get(row.unit, row.unit.upper())
    return click.Option([row.flag, row.name], metavar=metavar, help=text)


def _file_option(row: Setting) -> click.Option:
    """Return the option that names a file with a secret."""
    name = f"{row.name}_file"
    return click.Option([row.file_flag, name], metavar="FILE", help=f"{row.doc} [{row.file_env}]")


def _options() -> list[click.Parameter]:
    backend = click.Option(
        ["--backend"],
        multiple=True,
        metavar="[NAME=][KIND+]URL",
        help="A model server, in place of the file's; may be repeated. "
        "E.g. http://127.0.0.1:8081, gguf+http://127.0.0.1:8081, b=vllm+http://10.0.0.7:8000.",
    )
    flags: list[click.Parameter] = [_option(row) for row in SETTINGS if row.flag is not None]
    return [backend, *flags, *(_file_option(row) for row in SETTINGS if row.from_file)]


def _serve(**flags: object) -> None:
    directory = Path.cwd()

    def read() -> Configuration:
        return load(flags, os.environ, directory)

    try:
        configuration = read()
    except ConfigErrors as errors:
        print_errors(errors)
        sys.exit(2)
    # What is made until the router is ready stays: looking for garbage in it again and again takes
    # a twelfth of the start. cli/process.py collects once it is ready.
    gc.disable()
    # Imported here: everything heavy hangs on it, and --help and a faulty file need none of it.
    from lifeboat.cli import process

    sys.exit(process.serve(configuration, read))


serve = click.Command(
    "serve",
    callback=_serve,
    params=_options(),
    help="Start the router.\n\nFlags win over LIFEBOAT_* variables, those over backends.yaml. "
    "With no configuration and no --backend it starts on two embedded simulated backends.",
)
