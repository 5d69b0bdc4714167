"""How `lifeboat serve` starts, seen from within its process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

INSIDE = """
import gc, os, signal
from lifeboat.cli import process
from lifeboat.cli.main import main

def announce(router):
    print("collects garbage:", gc.isenabled())
    os.kill(os.getpid(), signal.SIGTERM)

process.announce = announce
main(["serve", "--port", "0"])
"""


def test_garbage_is_collected_from_the_moment_the_router_is_ready(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INSIDE],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.stdout == "collects garbage: True\n", ended.stderr
