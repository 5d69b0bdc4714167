"""Backends from the file, from flags and from a registration."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.settings import BackendConfig, ConfigErrors, backend_from_mapping
from tests.settings.configured import configure, faults


def test_the_smallest_useful_file_is_one_url(tmp_path: Path) -> None:
    (backend,) = configure(tmp_path, "backends:\n  - url: http://127.0.0.1:8081\n").backends
    assert backend == BackendConfig("127.0.0.1-8081", Kind.OPENAI, "http://127.0.0.1:8081")
    assert backend.serves == {Capability.GENERATE}


def test_every_key_of_an_entry_arrives_typed(tmp_path: Path) -> None:
    text = """
backends:
  - name: b
    kind: vllm
    url: https://h:1/prefix/
    models: [m, n]
    max_concurrency: ${SEATS}
    max_input_tokens: auto
    serves: [embed, rerank]
    api_key: ${KEY}
    connect_timeout: 500ms
    first_byte_timeout: 1m
    idle_timeout: 7
    tls: {ca_file: ca.pem, verify: no}
  - {name: c, kind: simulated, simulate: {model: m}}
"""
    first, second = configure(tmp_path, text, {"SEATS": "0", "KEY": "12345"}).backends
    assert first == BackendConfig(
        name="b",
        kind=Kind.VLLM,
        url="https://h:1/prefix",
        models=("m", "n"),
        max_concurrency=0,
        max_input_tokens="auto",
        serves=frozenset({Capability.EMBED, Capability.RERANK}),
        api_key="12345",
        connect_timeout_s=0.5,
        first_byte_timeout_s=60.0,
        idle_timeout_s=7.0,
        tls_ca_file=Path("ca.pem"),
        tls_verify=False,
    )
    assert second == BackendConfig("c", Kind.SIMULATED, simulate={"model": "m"})
    assert second.embedded


def test_replicas_become_backends_of_their_own(tmp_path: Path) -> None:
    text = "backends: [{name: sim-a, kind: simulated, replicas: 4}]\n"
    backends = configure(tmp_path, text).backends
    assert [one.name for one in backends] == ["sim-a-1", "sim-a-2", "sim-a-3", "sim-a-4"]
    assert all(one.replicas is None for one in backends)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{kind: gguf}", "backends[0]: has no url"),
        ("{name: x}", "backends[0]: has no url"),
        ("null", "backends[0]: has no url"),
        ("5", "backends[0] = 5: must be a mapping"),
        ("{url: h:1}", "Begin it with http://"),
        ("{url: 'ftp://h:1'}", "Begin it with http://"),
        ("{url: 'http://'}", "Name a host"),
        ("{url: 'http://h:0'}", "a port from 1 to 65535"),
        ("{url: 'http://h:70000'}", "Check its port"),
        ("{url: 'http://h:x'}", "Check its port"),
        ("{url: 'http://[::1:8080'}", "brackets of an IPv6 host"),
        ("{url: 'http://::1:8080'}", "Check its port"),
        ("{url: 'http://h h:1'}", "Remove the white space"),
        ("{url: 'http://h:1?x=1'}", "Take the query and the fragment out"),
        ("{url: 'http://h:1#x'}", "Take the query and the fragment out"),
        ("{url: 'http://joe:hush@h:1'}", "use api_key"),
        ("{url: 'http://h:1', simulate: {a: 1}}", "backends[0].simulate: stands beside a url"),
        ("{url: 'http://h:1', max_concurency: 3}", "Did you mean max_concurrency?"),
        ("{url: 'http://h:1', max_concurrency: -1}", "a whole number from 0"),
        ("{url: 'http://h:1', max_concurrency: true}", "a whole number from 0"),
        ("{url: 'http://h:1', max_input_tokens: many}", "or auto"),
        ("{url: 'http://h:1', serves: [generat]}", "a list of capabilities"),
        ("{url: 'http://h:1', serves: []}", "a list of capabilities"),
        ("{url: 'http://h:1', models: m}", "Write [a, b]"),
        ("{url: 'http://h:1', name: 'a/b'}", "a name of letters"),
        ("{url: 'http://h:1', kind: llama}", "one of simulated, gguf, vllm, openai"),
        ("{url: 'http://h:1', idle_timeout: 0}", "above 0"),
        ("{kind: simulated, replicas: 0}", "from 1 to 10000"),
        ("{url: '${NOPE}'}", "NOPE is not set"),
    ],
)
def test_a_faulty_entry_has_one_fault_with_its_remedy(
    tmp_path: Path, entry: str, told: str
) -> None:
    found = faults(tmp_path, f"backends:\n  - {entry}\n")
    assert len(found) == 1
    assert found[0].startswith("backends.yaml:2: backends[0]")
    assert told in found[0]
    assert "hush" not in found[0]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://HOST:1", "http://host:1"),
        ("http://h", "http://h"),
        ("http://h:1/", "http://h:1"),
        ("https://[::1]:8080/a/b/", "https://[::1]:8080/a/b"),
        ("http://my_service:80", "http://my_service:80"),
    ],
)
def test_a_url_takes_its_normal_spelling(tmp_path: Path, url: str, expected: str) -> None:
    (backend,) = configure(tmp_path, f"backends: [{{url: '{url}'}}]\n").backends
    assert backend.url == expected


def test_the_v1_that_every_path_begins_with_is_dropped_from_a_url(tmp_path: Path) -> None:
    configuration = configure(tmp_path, "backends: [{url: 'http://h:1/v1/'}]\n")
    assert configuration.backends[0].url == "http://h:1"
    assert "ends in /v1" in configuration.warnings[0]


def test_a_name_that_stands_twice_is_refused_also_among_replicas(tmp_path: Path) -> None:
    text = """
backends:
  - {name: a, kind: simulated, replicas: 2}
  - {name: a-2, kind: simulated}
"""
    (found,) = faults(tmp_path, text)
    assert "backends.yaml:4: backends[1].name = 'a-2': is the name of backends[0] already" in found


def test_two_names_with_one_url_are_a_warning(tmp_path: Path) -> None:
    text = "backends: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:1/'}]\n"
    (warning,) = configure(tmp_path, text).warnings
    assert "a, b share the url http://h:1" in warning


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("http://h:1", BackendConfig("h-1", Kind.OPENAI, "http://h:1")),
        ("gguf+http://h:1", BackendConfig("h-1", Kind.GGUF, "http://h:1")),
        ("b=vllm+https://h:1", BackendConfig("b", Kind.VLLM, "https://h:1")),
        ("http://h:1/a=b", BackendConfig("h-1", Kind.OPENAI, "http://h:1/a=b")),
        ("http://[::1]:9", BackendConfig("1-9", Kind.OPENAI, "http://[::1]:9")),
    ],
)
def test_a_backend_flag_is_a_short_entry(
    tmp_path: Path, flag: str, expected: BackendConfig
) -> None:
    configuration = configure(tmp_path, flags={"backend": (flag,)})
    assert configuration.backends == (expected,)
    assert not configuration.simulated_by_default


def test_backend_flags_stand_in_for_those_of_the_file(tmp_path: Path) -> None:
    text = "backends: [{name: a, url: 'http://h:1'}]\n"
    configuration = configure(tmp_path, text, flags={"backend": ("http://h:2",)})
    assert [one.url for one in configuration.backends] == ["http://h:2"]
    assert "stands in for the 1 backends of backends.yaml" in configuration.warnings[0]


def test_a_faulty_backend_flag_is_refused(tmp_path: Path) -> None:
    (found,) = faults(tmp_path, flags={"backend": ("sglang:http://h:1",)})
    assert "flag: --backend.url = 'sglang:http://h:1': must be a URL" in found


@pytest.mark.parametrize("flag", ["llama+http://h:1", "a=llama.cpp+https://h:1"])
def test_an_unknown_kind_in_a_backend_flag_names_the_known_ones(tmp_path: Path, flag: str) -> None:
    (found,) = faults(tmp_path, flags={"backend": (flag,)})
    assert found.startswith("flag: --backend.kind = 'llama")
    for kind in Kind:
        assert kind.value in found


@pytest.mark.parametrize(
    ("flags", "name"),
    [(("http://h:1", "http://h:1"), "h-1"), (("a=http://h:1", "a=http://h:2"), "a")],
)
def test_two_backend_flags_of_one_name_are_refused(
    tmp_path: Path, flags: tuple[str, ...], name: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        configure(tmp_path, flags={"backend": flags})
    (found,) = map(str, caught.value.problems)
    assert found.startswith(
        f"flag: --backend.name = '{name}': is the name of another --backend already"
    )
    assert caught.value.warnings == ()


def test_a_registration_is_read_by_the_same_rules() -> None:
    backend = backend_from_mapping({"name": "r", "kind": "gguf", "url": "http://h:1"})
    assert backend == BackendConfig("r", Kind.GGUF, "http://h:1")
    with pytest.raises(ConfigErrors) as caught:
        backend_from_mapping({"name": "r r", "url": "http://h:1", "max_concurrency": -1, "x": 1})
    assert [problem.key for problem in caught.value.problems] == ["x", "name", "max_concurrency"]
