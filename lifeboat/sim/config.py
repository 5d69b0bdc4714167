"""The options of one simulated engine: the same as YAML (`simulate:`), flags and Python.

`OPTIONS` is the table that docs and the command line read; `EngineConfig.from_mapping` validates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.catalogue import load_hardware, load_model
from lifeboat.sim.cost import CostModel
from lifeboat.sim.driver import Pacing
from lifeboat.sim.engine import Engine
from lifeboat.sim.kv import BLOCK_TOKENS
from lifeboat.sim.problems import ConfigError as ConfigError
from lifeboat.sim.problems import Fields, Problem


class Personality(StrEnum):
    """Which real server's manners the simulated one has."""

    VLLM = "vllm"
    GGUF = "gguf"
    """llama.cpp's server."""


DEFAULT_MODEL = "gpt-oss-20b"
DEFAULT_HARDWARE = "b200"

SIMULATED_CAPABILITIES = frozenset({Capability.GENERATE, Capability.EMBED, Capability.RERANK})
"""What a simulated engine can stand in for."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the option table. flag: None where it is for configuration files alone."""

    key: str
    flag: str | None
    default: str
    doc: str


OPTIONS = (
    Option("model", "--model", DEFAULT_MODEL, "model to imitate: a known name or a YAML file"),
    Option(
        "hardware", "--hardware", DEFAULT_HARDWARE, "card to imitate: a known name or a YAML file"
    ),
    Option("gpus", "--gpus", "1", "cards that work as one (tensor parallel, no overhead)"),
    Option("replicas", "--replicas", "1", "engines behind the one name, each with these options"),
    Option("served_name", "--served-name", "the model's name", "name or names clients ask for"),
    Option("max_num_seqs", "--max-num-seqs", "256", "seats: sequences that run at once"),
    Option(
        "max_waiting", "--max-waiting", "0", "line: queued requests before a 529; 0 = unbounded"
    ),
    Option(
        "max_num_batched_tokens",
        "--max-num-batched-tokens",
        "8192",
        "most new positions per step",
    ),
    Option(
        "max_model_len", "--max-model-len", "the model's", "longest sequence, prompt and answer"
    ),
    Option(
        "kv_blocks", "--kv-blocks", "what the memory holds", f"KV blocks of {BLOCK_TOKENS} tokens"
    ),
    Option(
        "time_scale", "--time-scale", "1", "wall seconds per modelled second; 10 = ten times slower"
    ),
    Option("pacing", "--pacing", "anchored", "anchored, or epoch (the unpaced cold start)"),
    Option("personality", "--personality", "vllm", "manners: vllm or gguf (llama.cpp)"),
    Option("startup", "--startup", "0s", "how long the model loads, in modelled time"),
    Option(
        "max_num_queued_reqs",
        "--max-num-queued-reqs",
        "0",
        "vLLM's own bound on requests in flight, refused with a 503 (in the stream when streamed);"
        " 0 = none; vllm personality only",
    ),
    Option(
        "answer_tokens", "--answer-tokens", "none", "natural length of an answer; none = max_tokens"
    ),
    Option("serves", "--serves", "generate, embed, rerank", "what the model can do"),
    Option("embedding_dimensions", None, "384", "length of embedding vectors"),
    Option("enable_faults", "--enable-faults", "false", "obey the x-sim-fault header"),
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated engine; every field is a row of `OPTIONS`.

    served_names: empty = the model's own name. max_waiting, max_num_queued_reqs: 0 = unbounded.
    max_model_len, kv_blocks, answer_tokens: None = what model and card give. startup_s: modelled.
    """

    model: str = DEFAULT_MODEL
    hardware: str = DEFAULT_HARDWARE
    gpus: int = 1
    replicas: int = 1
    served_names: tuple[str, ...] = ()
    max_num_seqs: int = 256
    max_waiting: int = 0
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None
    kv_blocks: int | None = None
    time_scale: float = 1.0
    pacing: Pacing = Pacing.ANCHORED
    personality: Personality = Personality.VLLM
    startup_s: float = 0.0
    max_num_queued_reqs: int = 0
    answer_tokens: int | None = None
    serves: frozenset[Capability] = SIMULATED_CAPABILITIES
    embedding_dimensions: int = 384
    enable_faults: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names clients may ask for; the first one is printed first."""
        return self.served_names or (load_model(self.model).name,)

    @property
    def context_tokens(self) -> int:
        """Longest sequence: the configured cap, else the model's."""
        return self.max_model_len or load_model(self.model).max_context

    def engines(self) -> list[Engine]:
        """Return a fresh engine a replica."""
        cost = self.cost_model()
        return [
            Engine(
                cost,
                max_num_seqs=self.max_num_seqs,
                max_waiting=self.max_waiting,
                token_budget=self.max_num_batched_tokens,
                kv_blocks=self.kv_blocks,
            )
            for _ in range(self.replicas)
        ]

    def cost_model(self) -> CostModel:
        """Return the step times of this engine; raises ConfigError for an unknown name."""
        return CostModel(load_model(self.model), load_hardware(self.hardware), self.gpus)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], path: str = "simulate.") -> EngineConfig:
        """Read the YAML mapping `simulate:`; `path` is put before each key that is complained of.

        Raises ConfigError with every problem found.
        """
        fields = Fields(mapping, path)
        personality = fields.member("personality", Personality, Personality.VLLM)
        config = cls(
            model=fields.text("model", DEFAULT_MODEL),
            hardware=fields.text("hardware", DEFAULT_HARDWARE),
            gpus=fields.whole("gpus", 1, least=1) or 1,
            replicas=fields.whole("replicas", 1, least=1) or 1,
            served_names=fields.texts("served_name"),
            max_num_seqs=fields.whole("max_num_seqs", 256, least=1) or 256,
            max_waiting=fields.whole("max_waiting", 0, least=0) or 0,
            max_num_batched_tokens=fields.whole("max_num_batched_tokens", 8192, least=1) or 8192,
            max_model_len=fields.whole("max_model_len", None, least=2),
            kv_blocks=fields.whole("kv_blocks", None, least=1),
            time_scale=fields.number("time_scale", 1.0, above=0.0),
            pacing=fields.member("pacing", Pacing, Pacing.ANCHORED),
            personality=personality,
            startup_s=fields.seconds("startup", 0.0),
            max_num_queued_reqs=fields.whole("max_num_queued_reqs", 0, least=0) or 0,
            answer_tokens=fields.whole("answer_tokens", None, least=1),
            serves=_capabilities(fields),
            embedding_dimensions=fields.whole("embedding_dimensions", 384, least=1) or 384,
            enable_faults=fields.flag("enable_faults", False),
        )
        fields.problems += _cross_checks(config, path)
        fields.finish()
        return config


def _capabilities(fields: Fields) -> frozenset[Capability]:
    names = fields.texts("serves")
    if not names:
        return SIMULATED_CAPABILITIES
    valid = {capability.value for capability in SIMULATED_CAPABILITIES}
    if not set(names) <= valid:
        fields.complain(
            "serves",
            f"a simulated engine can do {', '.join(sorted(valid))}",
            "Write serves: [embed].",
        )
        return SIMULATED_CAPABILITIES
    return frozenset(Capability(name) for name in names)


def _cross_checks(config: EngineConfig, path: str) -> list[Problem]:
    """Return what is wrong between the fields: unknown names, a model that does not fit."""
    try:
        cost = config.cost_model()
    except ConfigError as error:
        return [Problem(path + p.key, p.value, p.rule, p.remedy) for p in error.problems]
    problems: list[Problem] = []
    if config.kv_blocks is None and not cost.kv_blocks(BLOCK_TOKENS):
        problems.append(
            Problem(
                f"{path}gpus",
                config.gpus,
                f"the weights of {config.model} leave no memory for a KV cache on {config.gpus} x "
                f"{config.hardware}",
                "Raise gpus, or choose a larger card.",
            )
        )
    limit = cost.model.max_context
    if config.max_model_len is not None and config.max_model_len > limit:
        problems.append(
            Problem(
                f"{path}max_model_len",
                config.max_model_len,
                f"{config.model} has a context of {limit}",
                f"Write at most {limit}.",
            )
        )
    if config.max_num_queued_reqs and config.personality is not Personality.VLLM:
        problems.append(
            Problem(
                f"{path}max_num_queued_reqs",
                config.max_num_queued_reqs,
                "it is a bound of vLLM's",
                "Use personality: vllm, or max_waiting.",
            )
        )
    return problems
