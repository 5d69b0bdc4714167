"""Options, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.catalogue import load_hardware, load_model
from lifeboat.sim.config import OPTIONS, ConfigError, EngineConfig, Personality
from lifeboat.sim.driver import Pacing
from lifeboat.sim.files import load_engines
from lifeboat.sim.server import SimulatedServer


def test_nothing_given_is_the_default_engine() -> None:
    assert EngineConfig.from_mapping({}) == EngineConfig()
    assert EngineConfig().names == ("gpt-oss-20b",)
    assert EngineConfig().context_tokens == 131072


def test_every_option_is_read() -> None:
    config = EngineConfig.from_mapping(
        {
            "model": "llama-3.1-8b",
            "hardware": "h100",
            "gpus": 2,
            "replicas": 3,
            "served_name": ["a", "b"],
            "max_num_seqs": 16,
            "max_waiting": 64,
            "max_num_batched_tokens": 2048,
            "max_model_len": 8192,
            "kv_blocks": 500,
            "time_scale": 0.5,
            "pacing": "epoch",
            "personality": "vllm",
            "startup": "500ms",
            "max_num_queued_reqs": 100,
            "answer_tokens": 40,
            "serves": ["embed"],
            "embedding_dimensions": 8,
            "enable_faults": True,
        }
    )
    assert config == EngineConfig(
        model="llama-3.1-8b",
        hardware="h100",
        gpus=2,
        replicas=3,
        served_names=("a", "b"),
        max_num_seqs=16,
        max_waiting=64,
        max_num_batched_tokens=2048,
        max_model_len=8192,
        kv_blocks=500,
        time_scale=0.5,
        pacing=Pacing.EPOCH,
        personality=Personality.VLLM,
        startup_s=0.5,
        max_num_queued_reqs=100,
        answer_tokens=40,
        serves=frozenset({Capability.EMBED}),
        embedding_dimensions=8,
        enable_faults=True,
    )


def test_the_table_of_options_has_a_row_for_every_field() -> None:
    names = {"served_names": "served_name", "startup_s": "startup"}
    keys = [names.get(field.name, field.name) for field in fields(EngineConfig)]
    assert sorted(keys) == sorted(row.key for row in OPTIONS)
    assert all(row.doc for row in OPTIONS)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"max_num_seqs": 0}, "simulate.max_num_seqs: 0 is not allowed: it must be a whole number of"),
    ({"max_num_seqs": "many"}, "simulate.max_num_seqs: 'many'"),
    ({"max_num_seqs": True}, "simulate.max_num_seqs: True"),
    ({"max_waiting": -1}, "simulate.max_waiting: -1"),
    ({"time_scale": 0}, "simulate.time_scale: 0 is not allowed: it must be a number above 0"),
    ({"time_scale": float("nan")}, "simulate.time_scale: nan"),
    ({"time_scale": "slow"}, "simulate.time_scale: 'slow'"),
    ({"startup": "soon"}, "simulate.startup: 'soon' is not allowed: it must be a duration"),
    ({"startup": -1}, "simulate.startup: -1"),
    ({"personality": "sglang"}, "it must be one of vllm, gguf"),
    ({"personality": ["vllm"]}, "it must be one of vllm, gguf"),
    ({"pacing": 5}, "it must be one of anchored, epoch"),
    ({"model": "gpt-oss-20"}, "Did you mean gpt-oss-20b?"),
    ({"model": 7}, "simulate.model: 7 is not allowed: it must be a non-empty string"),
    ({"model": "./nowhere.yaml"}, "the file cannot be read"),
    ({"hardware": "tpu"}, "known are b200, h100"),
    ({"served_name": []}, "simulate.served_name: [] is not allowed"),
    ({"served_name": [3]}, "every name must be a non-empty string"),
    ({"serves": ["speech"]}, "a simulated engine can do embed, generate, rerank"),
    ({"enable_faults": "yes"}, "it must be true or false"),
    ({"max_num_seq": 5}, "Did you mean max_num_seqs?"),
    ({"max_model_len": 10**6}, "gpt-oss-20b has a context of 131072"),
    ({"personality": "gguf", "max_num_queued_reqs": 4}, "it is a bound of vLLM's"),
]


@pytest.mark.parametrize(("mapping", "words"), WRONG, ids=[str(row[0]) for row in WRONG])
def test_a_wrong_option_is_named_with_its_value_and_a_remedy(
    mapping: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_mapping(mapping)
    assert words in str(caught.value)
    assert all(problem.remedy for problem in caught.value.problems)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_mapping({"max_num_seqs": 0, "hardware": "tpu", "colour": "red"})
    assert [problem.key for problem in caught.value.problems] == [
        "simulate.max_num_seqs",
        "simulate.hardware",
        "simulate.colour",
    ]


MODEL_FILE = """
name: tiny
source: made up
hidden_size: 64
max_context: 2048
weights: [{precision: fp8, active_params: 1e9}]
attention: {precision: fp8, heads: 4, head_dim: 16, kv_heads: 2, layers: [{count: 2}]}
"""
CARD_FILE = """
name: card
flops: {fp8: 1e15, bf16: 5e14}
bandwidth: 1e12
memory_bytes: 8e9
"""


def test_a_user_adds_a_model_and_a_card_by_files(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(MODEL_FILE)
    (tmp_path / "card.yaml").write_text(CARD_FILE)
    config = EngineConfig.from_mapping(
        {"model": str(tmp_path / "tiny.yaml"), "hardware": str(tmp_path / "card.yaml")}
    )
    assert config.names == ("tiny",)
    assert config.context_tokens == 2048
    assert config.cost_model().step_s([(1, 0)]) == pytest.approx(1e9 / 1e12, rel=0.01)


WRONG_FILES: list[tuple[str, str, str]] = [
    ("model", "name: x\n", "max_context: None is not allowed: it is needed"),
    ("model", MODEL_FILE.replace("heads: 4", "heads: 0"), "attention.heads: 0"),
    (
        "model",
        MODEL_FILE.replace("fp8, active", "int3, active"),
        "it must be one of fp4, fp8, bf16",
    ),
    (
        "model",
        MODEL_FILE.replace("{precision: fp8, heads", "{precision: bf16, heads"),
        "weight stream",
    ),
    ("model", MODEL_FILE.replace("count: 2", "window: 2"), "layers[0].count: None"),
    ("model", MODEL_FILE + "colour: red\n", "colour: 'red' is not allowed: known keys are"),
    ("model", MODEL_FILE.replace("1e9}", "1e9, experts: 4}"), "experts_per_token"),
    ("model", "[]", "the file must hold a mapping"),
    ("model", "{", "the file is not YAML"),
    ("hardware", CARD_FILE.replace("bandwidth: 1e12", ""), "bandwidth: None"),
    ("hardware", CARD_FILE.replace(", bf16: 5e14", ""), "flops.bf16: None"),
    ("hardware", CARD_FILE.replace("8e9", "5e8"), "leave no memory for a KV cache"),
]


@pytest.mark.parametrize(("key", "text", "words"), WRONG_FILES)
def test_a_wrong_file_is_explained(tmp_path: Path, key: str, text: str, words: str) -> None:
    (tmp_path / "model.yaml").write_text(MODEL_FILE)
    (tmp_path / "hardware.yaml").write_text(CARD_FILE)
    (tmp_path / f"{key}.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_mapping(
            {name: str(tmp_path / f"{name}.yaml") for name in ("model", "hardware")}
        )
    assert words in str(caught.value)


def test_the_files_that_come_along_are_read_like_a_users() -> None:
    assert load_model("gpt-oss-20b").streams[0].experts == 32
    assert load_hardware("b200").bandwidth == 8e12


def test_engines_from_a_file_a_list_and_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("max_num_seqs: 3\n")
    (tmp_path / "b.yml").write_text(
        yaml.safe_dump({"models": [{"served_name": "x"}, {"served_name": "y", "gpus": 2}]})
    )
    assert load_engines(tmp_path / "a.yaml", {}) == [EngineConfig(max_num_seqs=3)]
    configs = load_engines(tmp_path, {"max_waiting": 9})
    assert configs == [
        EngineConfig(max_num_seqs=3, max_waiting=9),
        EngineConfig(served_names=("x",), max_waiting=9),
        EngineConfig(served_names=("y",), gpus=2, max_waiting=9),
    ]
    SimulatedServer(configs)


def test_a_model_file_is_looked_for_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(MODEL_FILE)
    (tmp_path / "engine.yaml").write_text("model: ./tiny.yaml\n")
    (config,) = load_engines(tmp_path / "engine.yaml", {})
    assert config.names == ("tiny",)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "the directory has no .yaml file"),
        ({"a.yaml": "[1]"}, "the file must hold a mapping"),
        ({"a.yaml": "models: 5"}, "`models` must be a list"),
        ({"a.yaml": "models: [5]"}, "every entry of `models` must be a mapping"),
        ({"a.yaml": "models: [{}]\ngpus: 2"}, "beside `models` nothing else may stand (gpus)"),
        ({"a.yaml": "{"}, "the file is not YAML"),
        ({"a.yaml": "gpus: 0", "b.yaml": "models: [{}, {gpu: 1}]"}, "a.yaml: gpus: 0"),
        ({"a.yaml": "gpus: 0", "b.yaml": "models: [{}, {gpu: 1}]"}, "b.yaml: models[1].gpu: 1"),
    ],
)
def test_wrong_engine_files_are_explained_all_at_once(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_engines(tmp_path, {})
    assert words in str(caught.value)


def test_a_config_is_a_value() -> None:
    assert replace(EngineConfig(), gpus=2) != EngineConfig()
    assert hash(EngineConfig()) == hash(EngineConfig())
