"""What observing costs, in CPU microseconds: the end of a request, and a scrape.

Run with `python -m bench.observe`. Target: at most 15 us per request with the access log off.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable

from lifeboat.core.modes import Mode
from lifeboat.core.view import BackendView, GateView, PoolView
from lifeboat.core.vocabulary import (
    BackendSpec,
    Capability,
    EngineReading,
    EstimateMethod,
    Health,
    Kind,
    OperatorState,
    Reason,
    Verdict,
)
from lifeboat.core.waits import DrainRate, WaitRecord
from lifeboat.observe.access_log import AccessLog
from lifeboat.observe.events import Finished, Observers
from lifeboat.observe.log_pipe import JsonFormatter, LogPipe, TextFormatter
from lifeboat.observe.metrics import Metrics
from lifeboat.observe.state import Surroundings, state_json

NONE = dict.fromkeys(Reason, 0)


def scene(backends: int, pools: int) -> GateView:
    """Return a router of that size in which every backend serves every pool it can share."""
    names = [f"backend-{number}" for number in range(backends)]
    models = [f"model-{number}" for number in range(pools)]
    views = {
        name: BackendView(
            BackendSpec(
                name,
                Kind.VLLM,
                frozenset({Capability.GENERATE}),
                frozenset(models[number::backends]),
            ),
            OperatorState.READY, Health.UP, None, True, 3, 32, 32, "configured", 100, 0, 0,
            dict.fromkeys(models[number::backends], 5),
        )
        for number, name in enumerate(names)
    }  # fmt: skip
    return GateView(
        1000.0, Mode.DEFAULT, True, 30.0, 4.0, 10.0, 4, 1.0, False, views,
        {
            model: PoolView(
                model, (names[number % backends],), 3, 32, 32, True, 30.0, 2, 128, 1.5,
                0.1, 0.2, 0.3, 100, 4.0, NONE,
            )
            for number, model in enumerate(models)
        },
        2 * pools, 0.1, 0.2, 0.3, NONE, 0, 0, 0, 0, 0, 0,
    )  # fmt: skip


def event(backend: str, pool: str) -> Finished:
    return Finished(
        1.7e9, "9f1c0f6e-4f0b-4c60-9d1f-5f6d5f1f2a3b", "POST", "/v1/chat/completions", pool, pool,
        backend, 200, None, Verdict.ANSWERED, 0.8, 0.4, 12.0, 812, EstimateMethod.QUICK, 3200,
        9000, 1, True,
    )  # fmt: skip


def cpu_us(call: Callable[[], object], count: int) -> float:
    """Return CPU microseconds per call of this thread: the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        started = time.thread_time()
        for _ in range(count):
            call()
        best = min(best, (time.thread_time() - started) / count)
    return best * 1e6


def metrics_over(view: GateView) -> Metrics:
    return Metrics(
        lambda: view, version="0", configured_pools=list, engines=dict[str, EngineReading]
    )


def requests() -> None:
    metrics = metrics_over(scene(4, 8))
    observers = Observers((metrics, AccessLog()), clock=time.monotonic)
    one = event("backend-1", "model-1")
    log = logging.getLogger("lifeboat")
    log.propagate = False
    log.setLevel(logging.WARNING)
    print(
        f"end of a request, log off      {cpu_us(lambda: observers.finished(one), 20_000):8.2f} us"
    )
    log.setLevel(logging.INFO)
    pipe = LogPipe(io.StringIO(), JsonFormatter())
    log.addHandler(pipe)
    print(
        f"end of a request, log on       {cpu_us(lambda: observers.finished(one), 1_500):8.2f} us"
    )
    pipe.close()
    log.removeHandler(pipe)
    record = logging.LogRecord("lifeboat.access", logging.INFO, "", 0, one, None, None)
    for name, formatter in (("json", JsonFormatter()), ("text", TextFormatter())):
        cost = cpu_us(lambda f=formatter: f.format(record), 5_000)
        print(f"formatting in the thread, {name} {cost:8.2f} us")


def records() -> None:
    waits, rate = WaitRecord(), DrainRate()
    clock = iter(range(10**9))
    wait_us = cpu_us(lambda: waits.add(0.3, next(clock) * 1e-3), 50_000)
    print(f"one wait recorded              {wait_us:8.2f} us")
    clock = iter(range(10**9))

    def finish() -> None:
        now = next(clock) * 1e-3
        rate.finished(now, now - 2.0, True)

    print(f"one finish in the drain rate   {cpu_us(finish, 50_000):8.2f} us")


def pages() -> None:
    for backends, pools in ((2, 2), (20, 50), (50, 300)):
        view = scene(backends, pools)
        metrics = metrics_over(view)
        size = len(metrics.render(None)[0])
        cost_ms = cpu_us(lambda m=metrics: m.render(None), 3) / 1e3
        read_ms = cpu_us(metrics.read, 3) / 1e3
        state_ms = cpu_us(lambda v=view: state_json(v, Surroundings("0", 0.0)), 3) / 1e3
        print(
            f"{backends:3} backends, {pools:3} pools: /metrics {cost_ms:7.2f} ms ({size:,} bytes), "
            f"of it on the loop {read_ms:6.2f} ms; state {state_ms:6.2f} ms"
        )


def main() -> None:
    requests()
    records()
    pages()


if __name__ == "__main__":
    main()
