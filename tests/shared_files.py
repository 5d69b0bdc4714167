"""Where the recorded traces and request bodies lie that some tests replay.

They are too large for the repository and stand beside the checkout, in a folder `shared`; the
variable LIFEBOAT_SHARED names another place. A test that needs them and finds none fails: a
replay that replays nothing proves nothing.
"""

from __future__ import annotations

import os
from pathlib import Path


def shared_root() -> Path:
    """Return the folder of shared files; raises FileNotFoundError where there is none."""
    named = os.environ.get("LIFEBOAT_SHARED")
    if named:
        root = Path(named)
        if root.is_dir():
            return root
        raise FileNotFoundError(f"LIFEBOAT_SHARED names {named!r}, which is no directory")
    for parent in Path(__file__).resolve().parents:
        beside = parent / "shared"
        if (beside / "traces").is_dir():
            return beside
    raise FileNotFoundError(
        "no directory `shared` beside the checkout: set LIFEBOAT_SHARED to the folder that holds "
        "traces/ and cases/"
    )


def shared_path(relative: str) -> Path:
    """Return the path of one shared file; raises FileNotFoundError naming what is missing."""
    path = shared_root() / relative
    if not path.exists():
        raise FileNotFoundError(f"the shared file {relative!r} is not at {path}")
    return path
