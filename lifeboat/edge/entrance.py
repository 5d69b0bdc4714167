"""The addresses the router listens on: aiohttp's server, the fast lane before it, and their end.

Held by tests/conformance/test_shutdown.py and tests/fleet_acceptance (rolling restarts).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from lifeboat.edge.app import Switchboard, application, on_lane
from lifeboat.edge.journey import NewId
from lifeboat.edge.listener import Listener, ProtocolFactory
from lifeboat.edge.server import JsonRunner
from lifeboat.wire.lane import Handler, Lane, LaneRules

LAST_READ_S = 0.05
LAST_LOOKS = 20
"""A connection accepted at the very end has a second to send its request and be refused."""


@dataclass(frozen=True, slots=True)
class EntranceRules:
    """head_timeout_s: for a request head. keepalive_s: an idle connection.

    write_timeout_s: longest time in which a client takes no byte of an answer.
    """

    head_timeout_s: float
    keepalive_s: float
    write_timeout_s: float

    @property
    def server(self) -> dict[str, float]:
        """The same for aiohttp's connections."""
        return {
            "head_timeout_s": self.head_timeout_s,
            "keepalive_timeout": self.keepalive_s,
            "write_timeout_s": self.write_timeout_s,
        }

    @property
    def lane(self) -> LaneRules:
        """The same for the fast lane."""
        return LaneRules(self.head_timeout_s, self.keepalive_s, self.write_timeout_s)


class Entrance:
    """All listeners of a router, and what serves their connections."""

    def __init__(self, rules: EntranceRules, new_id: NewId) -> None:
        self._rules = rules
        self._new_id = new_id
        self._runners: list[JsonRunner] = []
        self._listeners: list[Listener] = []
        self._lanes: list[Lane] = []

    async def open(
        self,
        switchboard: Switchboard,
        host: str,
        port: int,
        lane_tasks: asyncio.TaskGroup | None = None,
    ) -> list[str]:
        """Listen at an address and return its urls. Raises OSError when it cannot be had.

        lane_tasks: owns the tasks of the fast lane, which then comes first; None = aiohttp alone.
        """
        rules = self._rules
        runner = JsonRunner(
            application(switchboard, self._new_id),
            listens_on=frozenset({host.lower()}),
            shutdown_timeout=LAST_READ_S * LAST_LOOKS,
            **rules.server,
        )
        self._runners.append(runner)
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("a runner that is set up has a server")
        factory: ProtocolFactory = runner.server
        if lane_tasks is not None:
            handler = cast("Handler", switchboard.serve)
            lane = Lane(handler, on_lane, runner.server, lane_tasks, rules.lane)
            self._lanes.append(lane)
            factory = lane
        listener = Listener(factory)
        self._listeners.append(listener)
        return await listener.open(host, port)

    async def keep_time(self) -> None:
        """Run the fast lanes' clock, for ever."""
        async with asyncio.TaskGroup() as clocks:
            for lane in self._lanes:
                clocks.create_task(lane.run())

    def retune(self, rules: EntranceRules) -> None:
        """Set the timeouts of connections that are accepted from now on."""
        self._rules = rules
        for runner in self._runners:
            runner.retune(**rules.server)
        for lane in self._lanes:
            lane.rules = rules.lane

    async def close(self) -> None:
        """Stop listening, answer whoever had got through by then, and end every connection."""
        last: list[asyncio.BaseTransport] = []
        for listener in self._listeners:
            last += await listener.close()
        for _ in range(LAST_LOOKS):
            # What has arrived on open connections is read and refused in this time, not reset.
            await asyncio.sleep(LAST_READ_S)
            if all(transport.is_closing() for transport in last):
                break
        for lane in self._lanes:
            lane.close()
        for runner in self._runners:
            await runner.cleanup()
