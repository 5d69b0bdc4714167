"""Asks for some paths in turn until its standard input ends, then prints what came as JSON.

    python -m bench.connections.prober PORT PATH...

A path under /v1/ is asked for by POST, with a small chat. One keep-alive connection, one request
at a time; a process of its own, so that nothing but the router delays an answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import select
import sys
import time

from bench.connections.scene import Answers

PAUSE_S = 0.02
PATIENCE_S = 30.0
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]})


def ask(connection: http.client.HTTPConnection, path: str) -> bool:
    """Say whether a 200 came, whole."""
    method, body = ("POST", BODY) if path.startswith("/v1/") else ("GET", None)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    except (OSError, http.client.HTTPException):
        connection.close()
        return False


def summed(latencies_s: list[float], wrong: int) -> Answers:
    """Return percentiles, in milliseconds."""
    ordered = [latency_s * 1000 for latency_s in sorted(latencies_s)] or [float("nan")]
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Answers(len(latencies_s), wrong, ordered[len(ordered) // 2], p99, ordered[-1])


def main() -> None:
    port, *paths = sys.argv[1:]
    latencies: dict[str, list[float]] = {path: [] for path in paths}
    wrong = dict.fromkeys(paths, 0)
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
    ) as connection:
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            for path in paths:
                started = time.perf_counter()
                wrong[path] += not ask(connection, path)
                latencies[path].append(time.perf_counter() - started)
    pages = {path: dataclasses.asdict(summed(latencies[path], wrong[path])) for path in paths}
    print(json.dumps(pages))


if __name__ == "__main__":
    main()
