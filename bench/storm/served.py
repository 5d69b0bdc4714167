"""`lifeboat serve`, which besides tells on SIGUSR1 how many tasks it has: one JSON line on stdout.

python -m bench.storm.served serve --port 0 ...
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from types import FrameType

from lifeboat.cli.main import main


def tell(number: int, frame: FrameType | None) -> None:
    # Only a collection shows what is really held.
    gc.collect()
    tasks = asyncio.all_tasks(asyncio.get_running_loop())
    names = sorted(task.get_name() for task in tasks)
    print(json.dumps({"tasks": len(tasks), "names": names}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    main()
