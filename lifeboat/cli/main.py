"""The group of commands; each one's module is imported when it is called, so that all start fast.

Exit codes: 0 done, 1 a command failed, 2 a wrong call, a wrong configuration or no router there.
Held by tests/cli/test_commands.py.
"""

from __future__ import annotations

import importlib
import os

import click

import lifeboat

COMMANDS: dict[str, str] = {
    "serve": "lifeboat.cli.serve",
    "check": "lifeboat.cli.check",
    "status": "lifeboat.cli.status",
    "top": "lifeboat.cli.top",
    "backends": "lifeboat.cli.backends",
    "drain": "lifeboat.cli.operate",
    "ready": "lifeboat.cli.operate",
    "maint": "lifeboat.cli.operate",
    "set-limit": "lifeboat.cli.operate",
    "mode": "lifeboat.cli.mode",
    "explain": "lifeboat.cli.explain",
    "rejections": "lifeboat.cli.rejections",
    "agent": "lifeboat.cli.agent",
    "sim": "lifeboat.cli.sim",
    "simulate": "lifeboat.cli.simulate",
    "tune": "lifeboat.cli.tune",
    "version": "lifeboat.cli.version",
}
"""Command -> the module whose attribute of the same name (dashes as underscores) it is."""


class _LazyGroup(click.Group):
    """A group that imports a command's module only when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which an operator meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None where there is none of that name."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(lifeboat.__version__, prog_name="lifeboat", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Lifeboat: a load-balancing router for LLM model servers."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
