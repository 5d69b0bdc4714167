"""Hold a `lifeboat serve` process to its laws under many and slow connections.

    python -m bench.connections                          # all scenes: about 3 minutes
    python -m bench.connections slow-readers parked      # some
    python -m bench.connections --scale 0.1              # a tenth of the connections

- slow-readers: 500 clients read 10 MiB answers slowly, JSON bodies and streams;
- slow-senders: 500 connections send a head or a body byte by byte, while others want answers;
- parked: 10,000 requests wait in one process, and are then answered in order;
- streams: 2,000 streams are open at once, an event a second in each.

Exit code 1, and words, when a law is broken: something lost, not exact to the byte, or unbounded.
All scenes at full scale are written into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.connections import parked, slow_readers, slow_senders, streams
from bench.connections.scene import Scene
from bench.peers.processes import machine
from bench.peers.results import add_write_options, wants_writing, write_section

SCENES: dict[str, Callable[[Path, float], Awaitable[list[Scene]]]] = {
    "slow-readers": slow_readers.run,
    "slow-senders": slow_senders.run,
    "parked": parked.run,
    "streams": streams.run,
}


async def measure(names: list[str], scale: float) -> list[Scene]:
    """Run scenes one after another; print each as it ends."""
    found: list[Scene] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            started = time.monotonic()
            scenes = await SCENES[name](Path(directory), scale)
            for scene in scenes:
                print(f"{scene.text()}\n", flush=True)
            print(f"({name}: {time.monotonic() - started:.0f} s)\n", flush=True)
            found += scenes
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of connections")
    add_write_options(parser)
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in SCENES]:
        parser.error(f"no such scene: {', '.join(unknown)}")
    names = asked.names or list(SCENES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        scenes = runner.run(measure(names, asked.scale))
    broken = [f"{scene.title}: {line}" for scene in scenes for line in scene.broken]
    for line in broken:
        print(f"BROKEN: {line}")
    if wants_writing(asked, whole=set(names) == set(SCENES) and asked.scale == 1.0):
        command = " ".join(("python -m bench.connections", *sys.argv[1:]))
        conditions = (
            f"`{command}`, {datetime.date.today()}, {machine()}.\n\n"
            "Against a `lifeboat serve` process; its memory is its resident set, and what the "
            "kernel holds for sockets is told apart. Clients and engine share one other process."
        )
        parts = ("## Many connections, and slow ones", conditions, *(s.text() for s in scenes))
        write_section("connections", "\n\n".join(parts))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
