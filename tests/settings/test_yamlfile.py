"""The file as plain values: YAML 1.2 scalars, lines, doubles, placeholders."""

from __future__ import annotations

import pytest

from lifeboat.settings.problems import Findings
from lifeboat.settings.yamlfile import Document, read_document


def read(text: str, **environ: str) -> tuple[Document, list[str]]:
    findings = Findings()
    document = read_document(text, "f.yaml", environ, findings)
    return document, [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("on", "on"),
        ("no", "no"),
        ("12", 12),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2024-08-06", "2024-08-06"),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("30s", "30s"),
        ("~", None),
        ("", None),
        ('"12"', "12"),
        ('"\\ud83d\\ude00"', "\U0001f600"),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text: str, value: object) -> None:
    document, problems = read(f"key: {text}\n")
    assert problems == []
    assert document.tree == {"key": value}
    assert isinstance(document.tree, dict)
    assert type(document.tree["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A}", {"A": "4"}, "4"),
        ("x-${A}-${B}", {"A": "1", "B": "2"}, "x-1-2"),
        ("${A:-d}", {}, "d"),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A:-d}", {"A": "v"}, "v"),
        ("${A:-}", {}, None),
        ('"${A:-}"', {}, ""),
        ("${A}", {"A": ""}, None),
        ("$${A}", {}, "${A}"),
        ("costs $5", {}, "costs $5"),
        ("${A}", {"A": "${B}"}, "${B}"),
    ],
)
def test_a_placeholder_takes_its_variable_once(
    text: str, environ: dict[str, str], value: object
) -> None:
    document, problems = read(f"key: {text}\n", **environ)
    assert problems == []
    assert document.tree == {"key": value}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: stands twice, first on line 1"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: a.b: stands twice, first on line 2"),
        ("a: ${NOPE}\n", "f.yaml:1: a = '${NOPE}': NOPE is not set. Set NOPE, or"),
        ("a: [1, '${NO-PE}']\n", "f.yaml:1: a[1] = '${NO-PE}': has a broken ${"),
        ("a: [1\nb: 2\n", "f.yaml:2: the file: is not YAML"),
        ("a: !!python/name:os.system\n", "f.yaml:1: the file: is not YAML"),
        ("? [a, b]\n: 1\n", "f.yaml:1: the file: has a key that is no plain word"),
        ("a: " + "[" * 2000 + "]" * 2000, "f.yaml: the file: is nested too deep"),
    ],
)
def test_a_fault_names_its_line_and_key(text: str, told: str) -> None:
    _, problems = read(text)
    assert len(problems) == 1
    assert problems[0].startswith(told)


def test_anchors_and_merges_are_followed() -> None:
    document, problems = read("base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  y: 3\n")
    assert problems == []
    assert document.tree == {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}}


def test_every_key_remembers_its_line() -> None:
    document, _ = read("a: 1\nb:\n  - c: 2\n  - d: 3\n")
    assert document.where(("b", 1, "d")) == "f.yaml:4"
    assert document.where(("b", 1, "missing")) == "f.yaml:4"
    assert document.where(("missing",)) == "f.yaml:1"
