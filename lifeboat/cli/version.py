"""`lifeboat version`."""

from __future__ import annotations

import platform

import click

import lifeboat


@click.command()
def version() -> None:
    """Print the versions of Lifeboat and of Python."""
    click.echo(f"lifeboat {lifeboat.__version__} (Python {platform.python_version()})")
