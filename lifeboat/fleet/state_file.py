"""The registered backends on disk, so that they survive a restart of the router.

Written to a neighbour and renamed, so that a crash leaves the old file or the new one; readable by
the owner alone, for it may hold the backends' keys. A file that cannot be read is kept as it is,
said so, and neither used nor overwritten: an operator decides. Held by
tests/fleet/test_state_file.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lifeboat.settings.backends import backend_from_mapping
from lifeboat.settings.problems import ConfigErrors
from lifeboat.settings.shapes import BackendConfig

log = logging.getLogger(__name__)

VERSION = 1
LARGEST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Remembered:
    """One registration. ttl_s: None = it needs no heartbeat."""

    backend: BackendConfig
    ttl_s: float | None = None


class StateFile:
    """The file at `path`. fault: why it is not in use, None while all is well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: str | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._unreadable = False
        self.fault: str | None = None

    def read(self) -> list[Remembered]:
        """Return what it holds; nothing where it is missing or cannot be used (see `fault`)."""
        try:
            if self._path.stat().st_size > LARGEST_BYTES:
                raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
            text = self._path.read_text(encoding="utf-8")
            found = _parse(text)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError, ConfigErrors) as error:
            self._unreadable = True
            self.fault = (
                f"the state file {self._path} cannot be used and is left as it is: {error}. "
                "Registrations are not remembered until it is repaired or moved away and the "
                "router restarted"
            )
            log.error("%s", self.fault)
            return []
        self._written = _render(found)
        return found

    async def write(self, remembered: Sequence[Remembered]) -> None:
        """Replace its contents if they differ. A failure is kept in `fault` and tried again.

        One at a time, also when a caller was cancelled in its midst: its thread writes on, and an
        older list must not come to stand over a newer one.
        """
        await self._end_of_write()
        text = _render(remembered)
        if self._unreadable or text == self._written or (self._written is None and not remembered):
            return
        self._written = text
        loop = asyncio.get_running_loop()
        self._under_way = loop.run_in_executor(None, _replace, self._path, text)
        await self._end_of_write()

    async def _end_of_write(self) -> None:
        while self._under_way is not None:
            await self._settle(self._under_way)

    async def _settle(self, writing: asyncio.Future[None]) -> None:
        try:
            await asyncio.shield(writing)
        except OSError as error:
            self._written = None
            self._complain(f"the state file {self._path} cannot be written: {error}")
        else:
            self.fault = None
        if self._under_way is writing:
            self._under_way = None

    def _complain(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            log.error("%s", fault)


def _replace(path: Path, text: str) -> None:
    """Write `text` so that the file is never seen half written."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}.new")
    handle = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        neighbour.replace(path)
    except OSError:
        neighbour.unlink(missing_ok=True)
        raise


def _render(remembered: Sequence[Remembered]) -> str:
    entries = [{**_entry(one.backend), "ttl": one.ttl_s} for one in remembered]
    return json.dumps({"version": VERSION, "backends": entries}, indent=1) + "\n"


def _entry(backend: BackendConfig) -> dict[str, object]:
    """Return a backend by the keys of the configuration file; absent values are left out."""
    entry: dict[str, object] = {
        "name": backend.name,
        "kind": backend.kind.value,
        "url": backend.url,
        "models": None if backend.models is None else list(backend.models),
        "max_concurrency": backend.max_concurrency,
        "max_input_tokens": backend.max_input_tokens,
        "adaptive": backend.adaptive,
        "serves": sorted(capability.value for capability in backend.serves),
        "api_key": backend.api_key,
        "connect_timeout": backend.connect_timeout_s,
        "first_byte_timeout": backend.first_byte_timeout_s,
        "idle_timeout": backend.idle_timeout_s,
        "tls": {
            "ca_file": None if backend.tls_ca_file is None else str(backend.tls_ca_file),
            "verify": backend.tls_verify,
        },
    }
    return {key: value for key, value in entry.items() if value is not None}


def _parse(text: str) -> list[Remembered]:
    """Return the registrations in a file's text. Raises ValueError or ConfigErrors."""
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    table = cast("dict[str, Any]", value)
    if table.get("version") != VERSION:
        raise ValueError(f"it has version {table.get('version')!r}, not {VERSION}")
    entries = table.get("backends")
    if not isinstance(entries, list):
        raise ValueError("it has no list of backends")
    found: list[Remembered] = []
    for item in cast("list[object]", entries):
        if not isinstance(item, dict):
            raise ValueError("an entry of its backends is no object")
        entry = dict(cast("dict[str, object]", item))
        ttl = entry.pop("ttl", None)
        if isinstance(ttl, bool) or not isinstance(ttl, int | float | None):
            raise ValueError("a ttl of its backends is no number")
        backend = backend_from_mapping(entry)
        if backend.url is None:
            raise ValueError(f"its backend {backend.name!r} has no url")
        found.append(Remembered(backend, None if ttl is None else float(ttl)))
    return found
