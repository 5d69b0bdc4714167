"""Every call of the operators' API that changes or reveals something, once."""

from __future__ import annotations

CHANGES: list[tuple[str, str, object]] = [
    ("PUT", "mode", {"mode": "superfast"}),
    ("POST", "backends", {"url": "http://127.0.0.1:9", "name": "b"}),
    ("PATCH", "backends/a", {"max_concurrency": 3}),
    ("DELETE", "backends/a", None),
    ("POST", "explain", {"path": "/v1/chat/completions", "body": {"model": "m"}}),
]
"""Method, path below /api/lb/, and body, for a router with a backend `a`."""
