"""Where the recorded traces, request bodies and fault cases lie that some tests replay.

Those that the suite needs are kept in tests/recorded; a folder `shared` beside the checkout, or the
one that LIFEBOAT_SHARED names, comes first and may hold newer or larger ones. A test whose file is
nowhere fails: a replay that replays nothing proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"


def shared_roots() -> Iterator[Path]:
    """Yield the folders to look in, the first that has a file being the one."""
    named = os.environ.get("LIFEBOAT_SHARED")
    if named:
        if not Path(named).is_dir():
            raise FileNotFoundError(f"LIFEBOAT_SHARED names {named!r}, which is no directory")
        yield Path(named)
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "traces").is_dir():
            yield parent / "shared"
            break
    yield RECORDED


def shared_path(relative: str) -> Path:
    """Return the path of one recorded file; raises FileNotFoundError naming what is missing."""
    roots = list(shared_roots())
    for root in roots:
        if (root / relative).exists():
            return root / relative
    raise FileNotFoundError(
        f"the recorded file {relative!r} is in none of {', '.join(map(str, roots))}"
    )
