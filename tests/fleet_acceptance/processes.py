"""Simulated model servers and agents as real processes, which can be killed; ended by their pid."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

START_S = 40.0


class Process:
    """`lifeboat ARGS...` in a process of its own. said: its output so far, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[str] = []

    @classmethod
    async def start(cls, *args: str, log: Path) -> Process:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LIFEBOAT_")}
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-u", "-m", "lifeboat", *args,
                env=clean, stdout=asyncio.subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        return cls(process)

    async def says(self, words: str) -> str:
        """Wait for a line that has these words, and return it."""
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"it ended: {self.said}"
                self.said.append(line)
                if words in line:
                    return line

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it and wait for its end."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        try:
            return await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise

    async def kill(self) -> None:
        """kill -9."""
        await self.end(signal.SIGKILL)


class SimProcess(Process):
    """`lifeboat sim`, serving the model `m`. url: where it listens."""

    url: str

    @classmethod
    async def listening(cls, directory: Path, *args: str, port: int = 0) -> SimProcess:
        """Start one; it listens when this returns."""
        sim = await cls.start(
            "sim", "--port", str(port), "--served-name", "m", *args, log=directory / "sim.log"
        )
        assert isinstance(sim, SimProcess)
        try:
            sim.url = (await sim.says(" on http://")).split(" on ")[-1].strip()
        except BaseException:
            await sim.kill()
            raise
        return sim

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.asynccontextmanager
async def sims(directory: Path, count: int, *args: str) -> AsyncIterator[list[SimProcess]]:
    """Run some simulated servers; whatever stands in the list at the end is ended."""
    found: list[SimProcess] = []
    try:
        while len(found) < count:
            found.append(await SimProcess.listening(directory, *args))
        yield found
    finally:
        for sim in found:
            await sim.kill()
