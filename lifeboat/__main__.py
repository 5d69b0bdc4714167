"""`python -m lifeboat` is the `lifeboat` command."""

from __future__ import annotations

from lifeboat.cli.main import main

if __name__ == "__main__":
    main()
