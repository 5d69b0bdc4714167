"""The dashboard's files: a table of what may be asked for, read once from the package.

There is no build step and nothing from outside: what is in `static/` is what a browser gets. Only
names of this table are served, so no path of a request ever reaches the file system. Held by
tests/web/test_files.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files

INDEX = "index.html"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file. etag: strong, of its bytes, with its quotes."""

    name: str
    body: bytes
    content_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return every file of the dashboard by its name."""
    found: dict[str, StaticFile] = {}
    for entry in sorted(files(__name__).joinpath("static").iterdir(), key=lambda one: one.name):
        content_type = CONTENT_TYPES.get("." + entry.name.rpartition(".")[2])
        if content_type is not None:
            body = entry.read_bytes()
            etag = f'"{sha256(body).hexdigest()[:32]}"'
            found[entry.name] = StaticFile(entry.name, body, content_type, etag)
    return found
