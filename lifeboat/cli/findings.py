"""How problems and warnings of a configuration are printed: to stderr, one a line."""

from __future__ import annotations

from collections.abc import Iterable

import click

from lifeboat.settings.problems import ConfigErrors


def print_errors(errors: ConfigErrors) -> None:
    """Print every problem, then every warning, then how many problems there were."""
    for problem in errors.problems:
        click.echo(f"{click.style('error', fg='red', bold=True)}: {problem}", err=True)
    print_warnings(errors.warnings)
    count = len(errors.problems)
    click.echo(f"{count} {'error' if count == 1 else 'errors'} in the configuration", err=True)


def print_warnings(warnings: Iterable[str]) -> None:
    """Print every warning."""
    for warning in warnings:
        click.echo(f"{click.style('warning', fg='yellow', bold=True)}: {warning}", err=True)
