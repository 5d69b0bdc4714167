"""`GET /metrics`: the names that vLLM and llama.cpp export, read from the live engines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from lifeboat.sim.served import ServedModel

_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
              10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
"""vLLM's buckets of the time to first token."""


class Latencies:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, cumulative count) pairs."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, counted in zip([*map(str, _BUCKETS_S), "+Inf"], self._counts, strict=True):
            total += counted
            rows.append((bound, float(total)))
        return rows

    @property
    def sum_s(self) -> float:
        """Sum of all observations."""
        return self._sum_s


class EngineCollector(Collector):
    """vLLM's names for every model; llama.cpp's as well where its manners are imitated."""

    def __init__(self, models: list[ServedModel], *, llamacpp: bool) -> None:
        self._models = models
        self._llamacpp = llamacpp

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they are now."""
        for model in self._models:
            model.look()
        yield self._gauge(
            "vllm:num_requests_running",
            "Sequences that hold a seat.",
            [float(m.running) for m in self._models],
        )
        yield self._gauge(
            "vllm:num_requests_waiting",
            "Sequences in line, as admission counts them.",
            [float(m.waiting) for m in self._models],
        )
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "Part of the KV cache in use, 0 to 1.",
            [m.kv_usage for m in self._models],
        )
        yield from self._counters()
        yield self._first_token()
        if self._llamacpp:
            yield from self._llamacpp_families()

    def _gauge(self, name: str, text: str, values: list[float]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        for model, value in zip(self._models, values, strict=True):
            family.add_metric([model.names[0]], value)
        return family

    def _counters(self) -> Iterator[Metric]:
        rows = (
            ("vllm:prompt_tokens", "Prompt tokens computed.", "prompt_tokens"),
            ("vllm:generation_tokens", "Tokens emitted.", "generation_tokens"),
            ("vllm:num_preemptions", "Preemptions for want of KV blocks.", "preemptions"),
            ("vllm:admission_rejections", "Requests refused for load.", "refused"),
        )
        for name, text, attribute in rows:
            family = CounterMetricFamily(name, text, labels=["model_name"])
            for model in self._models:
                family.add_metric([model.names[0]], float(getattr(model, attribute)))
            yield family

    def _first_token(self) -> Metric:
        family = HistogramMetricFamily(
            "vllm:time_to_first_token_seconds",
            "Seconds from arrival to the first token, on the clock.",
            labels=["model_name"],
        )
        for model in self._models:
            family.add_metric(
                [model.names[0]], model.first_token.buckets(), model.first_token.sum_s
            )
        return family

    def _llamacpp_families(self) -> Iterator[Metric]:
        running = sum(model.running for model in self._models)
        waiting = sum(model.waiting for model in self._models)
        yield GaugeMetricFamily(
            "llamacpp:requests_processing", "Requests in a slot.", value=float(running)
        )
        yield GaugeMetricFamily(
            "llamacpp:requests_deferred", "Requests that wait for a slot.", value=float(waiting)
        )
        yield CounterMetricFamily(
            "llamacpp:prompt_tokens",
            "Prompt tokens computed.",
            value=float(sum(model.prompt_tokens for model in self._models)),
        )
        yield CounterMetricFamily(
            "llamacpp:tokens_predicted",
            "Tokens emitted.",
            value=float(sum(model.generation_tokens for model in self._models)),
        )


def registry_of(models: list[ServedModel], *, llamacpp: bool) -> CollectorRegistry:
    """Return a registry of its own for one server."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(models, llamacpp=llamacpp))
    return registry
