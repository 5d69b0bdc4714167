"""Faults of opening a connection that are this machine's own: they say nothing of the other end.

Source: BUG-228 of the public cases. Held by tests/conformance/test_resources.py.
"""

from __future__ import annotations

import errno

OURS = frozenset(
    {
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        # Every local port towards that server is taken.
        errno.EADDRNOTAVAIL,
    }
)
"""Error numbers of a process or machine that has run out of something."""


def is_ours(error: OSError) -> bool:
    """Say whether an attempt to connect failed for want of something here."""
    if error.errno is not None:
        return error.errno in OURS
    # With several addresses asyncio raises one OSError that only quotes the others.
    return "Too many open files" in str(error)
