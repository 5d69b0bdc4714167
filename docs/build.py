"""Writes the reference pages and the JSON schema from the tables in code.

    python -m docs.build            write them
    python -m docs.build --check    exit 1 when one is not current, or a link in docs/ leads nowhere

A further table is one more function and one more line in PAGES.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click

from docs.api_pages import code, default_of, estimate_page, page, state_page, table
from lifeboat.cli.main import main as lifeboat_command
from lifeboat.core.modes import MODE_ALIASES, MODES
from lifeboat.core.rejections import REJECT_STATUSES, REJECTIONS
from lifeboat.edge.endpoints import ENDPOINTS
from lifeboat.fleet.rules import LIVE
from lifeboat.observe.metric_table import METRICS
from lifeboat.settings.entries import BACKEND_ENTRIES, MODEL_ENTRIES, Entry
from lifeboat.settings.schema import schema_text
from lifeboat.settings.table import SETTINGS, Group, Setting
from lifeboat.sim.config import OPTIONS

ROOT = Path(__file__).resolve().parent.parent

# ---- settings ------------------------------------------------------------------------------------

_SETTINGS_INTRO = """\
A value comes from a flag of `lifeboat serve`, else from the environment, else from the
configuration file, else it is the default. Every value is checked before anything starts, and all
faults are reported at once, each with its remedy: `lifeboat check` does only that, and
`lifeboat check --show` prints each value with its source.

- Booleans: true, false, 1, 0, yes, no, on, off, whatever the case.
- Durations: in flags and the file `500ms`, `30s`, `10m`, `2h`, `1d` or plain seconds; the `_SEC`
  variables are plain numbers. Sizes: `64MiB` in flags and the file, plain numbers in the variables.
- An empty variable counts as unset. Secrets are the exception: an empty one stops the start, since
  it would protect nothing.
- A variable `LIFEBOAT_*` that is not listed here is a warning that names the nearest one.
- A setting changed over the API wins over all of these until the restart or until it is reset.
- On SIGHUP, and when the file has changed, all of this is read again ([how](
  ../explanation/fleet.md#reloading)). Timeouts of clients hold for connections that come later,
  everything else for requests that come later. Only a restart changes {frozen}."""

_FILE_INTRO = """\
`backends.yaml` in the working directory is read if it is there; `--config` names another file.
Scalars are read as YAML 1.2 does. Unknown keys and keys that stand twice are errors.

- `${VAR}` becomes the variable's value, and an error where it is not set; `${VAR:-default}` has a
  default for a variable that is unset or empty; `$${` is a plain `${`. A value that comes out empty
  counts as left out.
- The first line can tell an editor the schema, which ships with the package:
  `# yaml-language-server: $schema=lifeboat/backends.schema.json`."""


def settings_page() -> str:
    """Return the page of settings and of the file's entries."""
    frozen = [
        code(".".join(row.yaml or ())) for row in SETTINGS if row.yaml and row.name not in LIVE
    ]
    parts = [_SETTINGS_INTRO.replace("{frozen}", f"{', '.join(frozen[:-1])} and {frozen[-1]}")]
    for group in Group:
        rows = [row for row in SETTINGS if row.group is group]
        parts += [f"## {group.value}", _settings_table(rows)]
    parts += ["## The configuration file", _FILE_INTRO]
    parts += ["## One entry of `backends`", _entries_table(BACKEND_ENTRIES)]
    parts += ["## One entry of `models`", _entries_table(MODEL_ENTRIES)]
    return page("Settings", "`lifeboat/settings/table.py` and `entries.py`", *parts)


def _settings_table(rows: Iterable[Setting]) -> str:
    head = ("variable, key, flag", "default", "allowed", "meaning")
    lines: list[Sequence[str]] = []
    for row in rows:
        spellings = [row.env, ".".join(row.yaml or ()), row.flag or ""]
        if row.from_file:
            spellings += [row.file_env, ".".join(row.file_yaml), row.file_flag]
        names = "<br>".join(code(name) for name in spellings if name)
        lines.append((names, default_of(row), row.kind.rule, row.doc))
    return table(head, lines)


def _entries_table(entries: Iterable[Entry]) -> str:
    head = ("key", "default", "allowed", "meaning")
    return table(head, [(code(row.key), row.default, row.kind.rule, row.doc) for row in entries])


# ---- modes, rejections, metrics, commands --------------------------------------------------------


def modes_page() -> str:
    """Return the page of routing modes."""
    defaults = {row.name: row for row in SETTINGS}
    lines: list[Sequence[str]] = []
    for row in MODES.values():
        ttl = defaults["queue_all_ttl_s" if row.long_wait else "queue_ttl_s"]
        ceiling = defaults[
            "queue_all_depth_multiplier" if row.long_wait else "queue_depth_multiplier"
        ]
        cap = defaults["superfast_cap"]
        limit = f"min(max_concurrency, {cap.default})" if row.clamped else "max_concurrency"
        queue = "always on" if row.always_queues else _queue_switch()
        lines.append(
            (
                code(row.mode.value),
                limit,
                queue,
                default_of(ttl),
                f"{ceiling.default} x pool",
                row.order,
            )
        )
    head = ("mode", "effective limit", "queue", "TTL", "ceiling", "order among the parked")
    aliases = ", ".join(f"`{alias}` is `{mode.value}`" for alias, mode in MODE_ALIASES.items())
    notes = [f"- `{row.mode.value}`: {row.summary}" for row in MODES.values()]
    return page(
        "Routing modes",
        "`lifeboat/core/modes.py`",
        table(head, lines),
        "\n".join(notes),
        f"Case and `_` for `-` do not matter; {aliases}. A request parked for the boost "
        f"({default_of(defaults['boost_s'])}) or longer goes before every fresher one, in every "
        "mode; then the priority class decides (`X-Lifeboat-Priority`), then the order above.",
    )


def _queue_switch() -> str:
    row = next(row for row in SETTINGS if row.name == "queue_enabled")
    return f"off, unless `{row.env}=true`"


def rejections_page() -> str:
    """Return the page of rejections."""
    head = ("status", "reason", "type", "when", "retry", "what to do")
    rows = [
        (
            f"{row.status}{' *' if row.status_is_configurable else ''}",
            code(row.wire_reason or "") or f"none (`{row.reason.value}` in metrics)",
            code(row.error_type.value),
            row.when,
            "pointless" if row.retry_is_pointless else "",
            row.advice,
        )
        for row in REJECTIONS.values()
    ]
    others = " or ".join(str(status) for status in REJECT_STATUSES[1:])
    return page(
        "Rejections",
        "`lifeboat/core/rejections.py`",
        "Every refusal of Lifeboat's own, decided before any byte of an answer. A status that a "
        "backend answered is relayed as it came and has no `X-Lifeboat-Reject-Reason`.",
        table(head, rows),
        f"\\* {others} instead, where `LIFEBOAT_LB_REJECT_STATUS` says so. Where a retry is "
        "pointless, the answer carries `x-should-retry: false`, except for `no_backends` when it "
        "is temporary.",
    )


def metrics_page() -> str:
    """Return the page of metrics."""
    rows = [
        (code(row.name), row.type.value, ", ".join(row.labels) or "none", row.help)
        for row in METRICS
    ]
    buckets = [
        f"- `{row.name}`: {', '.join(f'{bound:g}' for bound in row.buckets)}"
        for row in METRICS
        if row.buckets
    ]
    return page(
        "Metrics",
        "`lifeboat/observe/metric_table.py`",
        "`GET /metrics`, as Prometheus text or OpenMetrics by `Accept`. All series of known "
        "backends, pools and reasons exist from the start, at 0.",
        table(("name", "type", "labels", "meaning"), rows),
        "## Buckets",
        "\n".join(buckets),
    )


def endpoints_page() -> str:
    """Return the page of proxied paths."""
    head = ("path", "methods", "what", "capability", "model", "body", "slot", "sent again")
    rows = [
        (
            code(row.path),
            ", ".join(row.methods),
            row.summary,
            row.capability.value,
            row.model.value,
            row.body.value,
            "yes" if row.gated else "no",
            row.replay.value,
        )
        for row in ENDPOINTS
    ]
    return page(
        "Proxied endpoints",
        "`lifeboat/edge/endpoints.py`",
        "Each path asks for one capability (`serves` of a backend). Where the model is optional "
        "and left out, the only pool with that capability is meant, else the model marked "
        "`default: true`, else the answer is a 400 that lists the choices. Paths without a slot do "
        "no inference and are never gated. *Sent again*: whether a request whose connection was "
        "lost before its answer began may go to another backend, once.",
        table(head, rows),
    )


def simulator_page() -> str:
    """Return the page of the simulated engine's options."""
    rows = [(code(row.key), code(row.flag or ""), row.default, row.doc) for row in OPTIONS]
    return page(
        "The simulated engine",
        "`lifeboat/sim/config.py`",
        "Keys of `simulate:` in a backend of the kind `simulated`, and flags of `lifeboat sim`.",
        table(("key", "flag", "default", "meaning"), rows),
    )


def commands_page() -> str:
    """Return the page of commands, from their own help."""
    # With the command's own settings: click remembers a help option as it was first made.
    context = click.Context(
        lifeboat_command,
        info_name="lifeboat",
        **{**lifeboat_command.context_settings, "terminal_width": 88, "max_content_width": 88},
    )
    parts: list[str] = []
    for name in lifeboat_command.list_commands(context):
        command = lifeboat_command.get_command(context, name)
        assert command is not None
        child = click.Context(
            command, parent=context, info_name=name, terminal_width=88, max_content_width=88
        )
        # click keeps the first help option a command ever made, whatever context made it.
        command._help_option = None
        parts += [f"## `lifeboat {name}`", f"```text\n{command.get_help(child)}\n```"]
    return page("Commands", "`lifeboat/cli/`", *parts)


# ---- writing and checking ------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/settings.md": settings_page,
    "docs/reference/modes.md": modes_page,
    "docs/reference/rejections.md": rejections_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/endpoints.md": endpoints_page,
    "docs/reference/simulator.md": simulator_page,
    "docs/reference/state.md": state_page,
    "docs/reference/estimate.md": estimate_page,
    "lifeboat/backends.schema.json": schema_text,
    "docs/reference/commands.md": commands_page,
}
"""Generated file -> what makes its text."""


def stale_pages() -> list[str]:
    """Return the generated files whose text is not what the tables say now."""
    return [name for name, make in PAGES.items() if _text_of(ROOT / name) != make()]


def broken_links() -> Iterator[str]:
    """Yield every relative link of a Markdown page that leads nowhere."""
    for source in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", _text_of(source)):
            if "://" not in target and not (source.parent / target).exists():
                yield f"{source.relative_to(ROOT)}: {target}"


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def write_pages() -> None:
    """Write every generated file."""
    for name, make in PAGES.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Write or check; return the exit code."""
    if "--check" not in arguments:
        write_pages()
        return 0
    faults = [f"{name} is not current: run `make docs`" for name in stale_pages()]
    faults += [f"a link leads nowhere: {link}" for link in broken_links()]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
