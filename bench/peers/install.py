"""Builds .venv-peers, the environment of the proxies that the benches compare with.

    make bench-peers

Their newest versions, which each result names. HAProxy is the system's: it is only looked for.
"""

from __future__ import annotations

import subprocess
import sys

from bench.peers.contestants import PACKAGES, VENV, haproxy, missing, versions


def main() -> int:
    if not (VENV / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    print(f"installing {', '.join(PACKAGES)} into {VENV.name}", flush=True)
    pip = [str(VENV / "bin/python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *PACKAGES], check=True)
    print(versions())
    said = missing([haproxy])
    print(*said, sep="\n", end="\n" if said else "")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
