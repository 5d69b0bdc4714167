"""Puts a configuration together: flag over environment over file over default, checked as a whole.

Every fault is found before any is reported, and every value remembers where it came from.
Held by tests/settings/test_load.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from lifeboat.core.modes import Mode
from lifeboat.settings.backends import default_backends, read_backend_flags, read_backends
from lifeboat.settings.models import read_models
from lifeboat.settings.problems import ConfigErrors, Findings, nearest
from lifeboat.settings.reading import NamePath, flat_items, parse_value
from lifeboat.settings.shapes import Configuration, Settings
from lifeboat.settings.table import SETTINGS, TOP_LEVEL_KEYS, Setting, environment_names
from lifeboat.settings.texts import FilePath
from lifeboat.settings.values import BadValueError
from lifeboat.settings.yamlfile import Document, dotted, read_document

DEFAULT_FILE = "backends.yaml"
PREFIX = "LIFEBOAT_"

FLAG, ENVIRONMENT, FILE, DEFAULT = "flag", "environment", "file", "default"
"""The sources of a value, the strongest first."""

_LARGEST_FILE = 8 << 20
"""Bytes of a configuration file: more is the wrong file."""


def load(flags: Mapping[str, object], environ: Mapping[str, str], directory: Path) -> Configuration:
    """Return the configuration.

    flags: by setting name, None where not given; `backend` holds the `--backend` texts, and
        `api_keys_file` and `admin_token_file` the files of secrets.
    directory: where `backends.yaml` is looked for, and what relative paths start from.
    Raises ConfigErrors with every fault and warning found.
    """
    findings = Findings()
    _warn_of_unknown_variables(environ, findings)
    path = _config_path(flags, environ, directory, findings)
    document = _read_file(path, environ, findings)
    known: set[NamePath] = {(key,) for key in TOP_LEVEL_KEYS}
    for row in SETTINGS:
        if row.yaml is not None:
            known.add(row.yaml)
            if row.from_file:
                known.add(row.file_yaml)
    given = flat_items(document.tree, known, (), document, findings)
    settings = _settings(flags, environ, _FileValues(given, document, directory), path, findings)
    backends = read_backends(given.get(("backends",)), document, findings)
    flag_backends = read_backend_flags(cast("Iterable[str]", flags.get("backend") or ()), findings)
    if flag_backends and backends:
        findings.warn(f"--backend stands in for the {len(backends)} backends of {document.name}")
    backends = flag_backends or backends
    simulated = path is None and not backends and not findings.problems
    if simulated:
        backends = default_backends()
    models = read_models(given.get(("models",)), backends, document, findings)
    if settings is not None:
        _check_together(settings, bool(backends), findings)
    if findings.problems or settings is None:
        raise ConfigErrors(findings.problems, findings.warnings)
    return Configuration(settings, backends, models, tuple(findings.warnings), path, simulated)


# ---- where values come from ----------------------------------------------------------------------


class _FileValues:
    """The settings of the file, by their path."""

    def __init__(
        self, given: Mapping[NamePath, object], document: Document, directory: Path
    ) -> None:
        self.given = given
        self.document = document
        self.directory = directory


def _config_path(
    flags: Mapping[str, object], environ: Mapping[str, str], directory: Path, findings: Findings
) -> Path | None:
    """Return the file to read: named by flag or variable, else the default if it is there."""
    named = flags.get("config") or environ.get("LIFEBOAT_CONFIG")
    if not named:
        path = directory / DEFAULT_FILE
        return path if path.is_file() else None
    try:
        path = directory / FilePath().parse(named)
    except BadValueError:
        return None  # The row of the setting says so.
    if not path.is_file():
        where, key = (FLAG, "--config") if flags.get("config") else (ENVIRONMENT, "LIFEBOAT_CONFIG")
        findings.refuse(where, key, str(named), "is no file", "Name a file that is there.")
        return None
    return path


def _read_file(path: Path | None, environ: Mapping[str, str], findings: Findings) -> Document:
    if path is None:
        return Document(DEFAULT_FILE)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            rule = f"is larger than {_LARGEST_FILE} bytes"
            findings.refuse(path.name, "the file", None, rule, "Is it the right file?")
            return Document(path.name)
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        rule, remedy = f"cannot be read: {error}", "Check its permissions, and save it as UTF-8."
        findings.refuse(path.name, "the file", None, rule, remedy)
        return Document(path.name)
    return read_document(text, path.name, environ, findings)


def _settings(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: _FileValues,
    path: Path | None,
    findings: Findings,
) -> Settings | None:
    """Return all settings, None where any value was refused."""
    before = len(findings.problems)
    values: dict[str, object] = {"config": path}
    sources: dict[str, str] = {}
    for row in SETTINGS:
        value, sources[row.name] = _value(row, flags, environ, file, findings)
        values.setdefault(row.name, value)
    if len(findings.problems) > before:
        return None
    return Settings(**cast("dict[str, Any]", values), sources=sources)


def _value(
    row: Setting,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: _FileValues,
    findings: Findings,
) -> tuple[object, str]:
    """Return a setting's value and its source; faults of weaker sources count too."""
    results: list[tuple[object, str]] = []
    default = _shown(row.default)
    raw = flags.get(row.name)
    if raw is not None:
        key = row.flag or row.name
        results.append((parse_value(row.kind, raw, FLAG, key, findings, default=default), FLAG))
    variable = environ.get(row.env)
    if row.secret and variable == "":
        remedy = f"Give a value, or unset {row.env}."
        findings.refuse(
            ENVIRONMENT, row.env, None, "is set but empty, which protects nothing", remedy
        )
    elif variable:
        value = parse_value(
            row.kind,
            variable,
            ENVIRONMENT,
            row.env,
            findings,
            default=default,
            secret=row.secret,
            plain=True,
        )
        results.append((value, ENVIRONMENT))
    if row.yaml is not None and row.yaml in file.given:
        where, key = file.document.where(row.yaml), dotted(row.yaml)
        value = parse_value(
            row.kind, file.given[row.yaml], where, key, findings, default=default, secret=row.secret
        )
        results.append((value, FILE))
    if row.from_file:
        results = _with_files(row, results, flags, environ, file, findings)
    return results[0] if results else (row.default, DEFAULT)


def _with_files(
    row: Setting,
    results: list[tuple[object, str]],
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: _FileValues,
    findings: Findings,
) -> list[tuple[object, str]]:
    """Return `results` with what the `_FILE` variants say; both at one level are a problem."""
    flag_value, file_value = flags.get(f"{row.name}_file"), file.given.get(row.file_yaml)
    named = [
        (FLAG, FLAG, row.file_flag, flag_value),
        (ENVIRONMENT, ENVIRONMENT, row.file_env, environ.get(row.file_env)),
        (FILE, file.document.where(row.file_yaml), dotted(row.file_yaml), file_value),
    ]
    given = {source: value for value, source in results}
    for source, where, key, raw in named:
        if not raw:
            continue
        if source in given:
            findings.refuse(where, key, raw, f"stands beside {row.name}", "Keep one of the two.")
            continue
        text = _read_secret(raw, where, key, file.directory, findings)
        if text is not None:
            given[source] = parse_value(row.kind, text, where, key, findings, secret=True)
    return [(given[source], source) for source in (FLAG, ENVIRONMENT, FILE) if source in given]


def _read_secret(
    raw: object, where: str, key: str, directory: Path, findings: Findings
) -> str | None:
    """Return the text of a file that holds a secret."""
    try:
        return (directory / FilePath().parse(raw)).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path of a UTF-8 text"
        remedy = "Name a readable file that holds the secret and nothing else."
        findings.refuse(where, key, raw, f"cannot be read: {reason}", remedy)
        return None


def _shown(default: object) -> str:
    """Return a default as a remedy names it."""
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


# ---- checks over several values ------------------------------------------------------------------

_OTHER_VARIABLES = frozenset({"LIFEBOAT_SHARED", "LIFEBOAT_TUNE_API_KEY"})
"""Read by the test suite and by `lifeboat tune`, not by the router."""


def _warn_of_unknown_variables(environ: Mapping[str, str], findings: Findings) -> None:
    known = environment_names()
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in _OTHER_VARIABLES:
            near = _nearest_variable(name, known, LIKELY)
            hint = f": did you mean {near}?"
            if near is None:
                far = _nearest_variable(name, known, 0.0)
                hint = f" and has no effect; the nearest known one is {far}"
            findings.warn(f"environment: {name} is no variable of Lifeboat{hint}")


LIKELY = 0.7
"""A variable as like as this may be meant; another is only the nearest."""


def _nearest_variable(name: str, known: Iterable[str], likeness: float) -> str | None:
    """Return the variable most like a name: what all of them begin with makes none of them near."""
    names = (one.removeprefix(PREFIX) for one in known)
    near = nearest(name.removeprefix(PREFIX), names, likeness)
    return near and f"{PREFIX}{near}"


def _check_together(settings: Settings, any_backend: bool, findings: Findings) -> None:
    """Judge values that only make sense together."""
    told = settings.sources["queue_enabled"] != DEFAULT
    if settings.mode is Mode.QUEUE_ALL and told and not settings.queue_enabled:
        findings.warn(
            "queue_enabled is false, but the queue-all mode always queues: the mode wins "
            "(LIFEBOAT_LB_QUEUE_ENABLED, queue.enabled)"
        )
    if settings.boost_s >= settings.queue_ttl_s and settings.sources["boost_s"] != DEFAULT:
        findings.warn(
            f"the boost ({settings.boost_s:g} s) comes no sooner than the TTL "
            f"({settings.queue_ttl_s:g} s): no parked request will ever be boosted"
        )
    address = settings.admin_addr
    if (
        address is not None
        and address.port
        and (address.host, address.port)
        == (
            settings.host,
            settings.port,
        )
    ):
        rule, remedy = "is the address of the first listener", "Give it another port."
        findings.refuse(
            settings.sources["admin_addr"], "LIFEBOAT_ADMIN_ADDR", str(address), rule, remedy
        )
    state_file = settings.state_file
    if state_file is not None and not state_file.absolute().parent.is_dir():
        rule, remedy = "lies in a folder that is not there", "Create the folder first."
        findings.refuse(
            settings.sources["state_file"], "LIFEBOAT_STATE_FILE", str(state_file), rule, remedy
        )
    if not any_backend and not findings.problems:
        findings.warn(
            "no backends: every request is refused until one is registered "
            "(backends: in the file, or --backend URL)"
        )
