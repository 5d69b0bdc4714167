"""How long one engine step takes: a roofline over the model's weight streams and its attention.

Source: "Time of one engine step" in docs/explanation/simulated-engine.md. Pure arithmetic; the
published step times hold within 0.1 % (tests/sim/test_cost.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """How a value is stored, narrowest first."""

    FP4 = "fp4"
    FP8 = "fp8"
    BF16 = "bf16"

    @property
    def value_bytes(self) -> float:
        """Bytes per value."""
        return _VALUE_BYTES[self]


_VALUE_BYTES = {Precision.FP4: 0.5, Precision.FP8: 1.0, Precision.BF16: 2.0}


@dataclass(frozen=True, slots=True)
class WeightStream:
    """The weights of one precision; a step reads and multiplies stream after stream.

    active_params: parameters that one token goes through.
    resident_params: parameters that lie in memory.
    experts, experts_per_token: 0 for dense weights.
    """

    precision: Precision
    active_params: float
    resident_params: float
    experts: int = 0
    experts_per_token: int = 0

    @property
    def resident_bytes(self) -> float:
        """Memory that the stream takes."""
        return self.resident_params * self.precision.value_bytes

    def read_bytes(self, tokens: int) -> float:
        """Return the bytes that a step of `tokens` positions reads.

        Dense weights are read once a step. Of a mixture of experts, a step reads the shared part
        and the experts that at least one of its tokens chose (independent uniform choices).
        """
        if not self.experts:
            return self.active_params * self.precision.value_bytes
        per_expert = (self.resident_params - self.active_params) / (
            self.experts - self.experts_per_token
        )
        shared = max(self.active_params - self.experts_per_token * per_expert, 0.0)
        missed = (1.0 - 1.0 / self.experts) ** (tokens * self.experts_per_token)
        distinct = self.experts * (1.0 - missed)
        return (shared + distinct * per_expert) * self.precision.value_bytes


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that attend alike; window: positions each one looks back on, None = all."""

    layers: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of a model.

    precision: of its arithmetic, which is added to the weight stream of that precision.
    kv_precision: of the cached keys and values.
    """

    precision: Precision
    heads: int
    head_dim: int
    kv_heads: int
    kv_precision: Precision
    groups: tuple[LayerGroup, ...]

    @property
    def kv_bytes_per_position(self) -> float:
        """Bytes of keys and values per position and layer."""
        return 2 * self.kv_heads * self.head_dim * self.kv_precision.value_bytes

    @property
    def flops_per_pair(self) -> int:
        """FLOPs per new position, attended position and layer."""
        return 4 * self.heads * self.head_dim

    @property
    def full_layers(self) -> int:
        """Layers without a window: those whose cache grows with the context."""
        return sum(group.layers for group in self.groups if group.window is None)


@dataclass(frozen=True, slots=True)
class Model:
    """A model as the cost model sees it. source: where its figures come from."""

    name: str
    source: str
    hidden_size: int
    max_context: int
    streams: tuple[WeightStream, ...]
    attention: Attention

    @property
    def resident_bytes(self) -> float:
        """Memory that the weights take."""
        return sum(stream.resident_bytes for stream in self.streams)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One card. flops: FLOP/s by precision; bandwidth: bytes/s. source: of the figures."""

    name: str
    source: str
    flops: dict[Precision, float]
    bandwidth: float
    memory_bytes: float

    def rate(self, precision: Precision) -> float:
        """Return the FLOP/s for values stored in `precision`.

        A card without arithmetic of that width works in the next wider one that it has: the
        values are still read at their stored width.
        """
        order = list(Precision)
        for wider in order[order.index(precision) :]:
            if wider in self.flops:
                return self.flops[wider]
        raise ValueError(f"hardware {self.name!r} has no FLOP rate for {precision} or wider")


Work = tuple[int, int]
"""What one request adds to a step: (new positions, positions already resident)."""

MEMORY_SHARE = 0.9
"""Part of a card's memory that weights and KV cache may take (vLLM's default)."""


class CostModel:
    """Step times of one model on `gpus` cards of one kind (tensor parallel, no overhead)."""

    def __init__(self, model: Model, hardware: Hardware, gpus: int = 1) -> None:
        self.model = model
        self.hardware = hardware
        self._bandwidth = hardware.bandwidth * gpus
        self._rates = [hardware.rate(stream.precision) * gpus for stream in model.streams]
        attention = model.attention
        self._full_layers = attention.full_layers
        self._windows = [(g.layers, g.window) for g in attention.groups if g.window is not None]
        self._pair_flops = attention.flops_per_pair
        self._position_bytes = attention.kv_bytes_per_position
        precisions = [stream.precision for stream in model.streams]
        self._attention_at = precisions.index(attention.precision)
        self._kv_memory = hardware.memory_bytes * gpus * MEMORY_SHARE

    def kv_blocks(self, block_tokens: int) -> int:
        """Return how many blocks of `block_tokens` positions the memory left by the weights holds.

        Only full layers count: a windowed layer keeps a constant few positions. A model without
        full layers is bounded by its seats alone and gets blocks for every seat's context.
        """
        free = int(self._kv_memory) - self.model.resident_bytes
        block_bytes = block_tokens * self._full_layers * self._position_bytes
        if not block_bytes:
            return 1 << 40
        return max(int(free // block_bytes), 0)

    def step_s(self, work: Sequence[Work]) -> float:
        """Return the seconds of a step that does `work`; at least one new position."""
        tokens = 0
        flops = 0.0
        read = 0.0
        full = self._full_layers
        windows = self._windows
        for new, resident in work:
            tokens += new
            # Half of the new positions are, on average, there already for each new one.
            context = resident + (new + 1) // 2
            attended = full * context
            for layers, window in windows:
                attended += layers * (context if context < window else window)
            flops += new * attended
            read += attended
        total_s = 0.0
        for at, stream in enumerate(self.model.streams):
            stream_flops = 2.0 * stream.active_params * tokens
            stream_bytes = stream.read_bytes(tokens)
            if at == self._attention_at:
                stream_flops += flops * self._pair_flops
                stream_bytes += read * self._position_bytes
            total_s += max(stream_flops / self._rates[at], stream_bytes / self._bandwidth)
        return total_s
