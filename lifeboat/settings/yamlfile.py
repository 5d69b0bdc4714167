"""Reads the configuration file: plain values, each with its line, `${VAR}` expanded.

Scalars follow YAML 1.2 (`on`, `no` and 1:30 are text, as anybody but YAML 1.1 expects); a key that
stands twice is a problem, not a silent last one. Held by tests/settings/test_yamlfile.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from lifeboat.settings.problems import Findings

KeyPath = tuple[str | int, ...]

_DEEPEST = 32
"""Levels of nesting; the deepest legal key stands at 4."""

_PLACEHOLDER = re.compile(
    r"\$(?P<escaped>\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}"
    r"|(?P<broken>\$\{)"
)


@dataclass(slots=True)
class Document:
    """The file as plain values: dict, list, str, int, float, bool, None.

    name: what messages call the file. lines: the line of each key path, from 1.
    refused: paths whose value could not be made, with the problem already recorded.
    """

    name: str
    tree: object = None
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    refused: set[KeyPath] = field(default_factory=set[KeyPath])

    def where(self, path: KeyPath) -> str:
        """Return `file:line` of the nearest known part of a path."""
        for length in range(len(path), -1, -1):
            line = self.lines.get(path[:length])
            if line is not None:
                return f"{self.name}:{line}"
        return self.name


def dotted(path: KeyPath) -> str:
    """Return a key path as messages write it: `backends[0].url`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def _joined(text: str) -> str:
    """Return a text with surrogate pairs as the characters they mean.

    JSON is YAML, but writes what lies beyond U+FFFF as two escapes, which YAML reads one by one.
    """
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


class _Scalars(yaml.SafeLoader):
    """The safe loader with YAML 1.2's core scalars."""


_PLAIN_FORMS = (
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
    ("null", r"~|null|Null|NULL|"),
    ("merge", r"<<"),
)
# Under the key None, PyYAML tries these whatever the first character is.
_Scalars.yaml_implicit_resolvers = {
    None: [(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{form})$")) for tag, form in _PLAIN_FORMS]
}


def read_document(text: str, name: str, environ: Mapping[str, str], findings: Findings) -> Document:
    """Return the document in `text`; what is wrong with it goes into `findings`."""
    document = Document(name)
    loader = _Scalars(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.tree = _Builder(document, loader, environ, findings).value(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = name if mark is None else f"{name}:{mark.line + 1}"
        rule = f"is not YAML: {getattr(error, 'problem', None) or error}"
        findings.refuse(where, "the file", None, rule, "Mind indentation, quotes and colons.")
    except RecursionError:
        findings.refuse(name, "the file", None, "is nested too deep", "Nothing here is that deep.")
    finally:
        loader.dispose()
    return document


@dataclass(slots=True)
class _Builder:
    """Turns nodes into values."""

    document: Document
    loader: _Scalars
    environ: Mapping[str, str]
    findings: Findings

    def value(self, node: yaml.Node, path: KeyPath) -> object:
        """Return the value of a node and note the lines below it."""
        self.document.lines.setdefault(path, node.start_mark.line + 1)
        if len(path) > _DEEPEST:
            raise RecursionError
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, at)) for at, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        node.value = _joined(node.value)
        if "${" in node.value:
            return self._expanded(node, path)
        return cast(Any, self.loader).construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in first_lines and key != "<<":
                where = f"{self.document.name}:{line}"
                rule = f"stands twice, first on line {first_lines[key]}"
                self.findings.refuse(where, dotted((*path, key)), None, rule, "Keep one of them.")
            first_lines.setdefault(key, line)
        self.loader.flatten_mapping(node)
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                where = f"{self.document.name}:{key_node.start_mark.line + 1}"
                rule = "has a key that is no plain word"
                self.findings.refuse(
                    where, dotted(path) or "the file", None, rule, "Write key: value."
                )
                continue
            key = _joined(str(key_node.value))
            self.document.lines[(*path, key)] = key_node.start_mark.line + 1
            values[key] = self.value(value_node, (*path, key))
        return values

    def _expanded(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        """Return the text with its variables; None where that fails or leaves nothing unquoted."""

        def replacement(match: re.Match[str]) -> str:
            if match["escaped"]:
                return "${"
            where, key = self.document.where(path), dotted(path)
            if match["broken"]:
                remedy = "Write ${VAR} or ${VAR:-default}, and $${ for a plain ${."
                self.findings.refuse(where, key, node.value, "has a broken ${", remedy)
                return ""
            name, default = match["name"], match["default"]
            value = self.environ.get(name)
            if default is not None:
                return value or default
            if value is None:
                remedy = f"Set {name}, or write ${{{name}:-default}}."
                self.findings.refuse(where, key, node.value, f"{name} is not set", remedy)
                return ""
            return value

        before = len(self.findings.problems)
        text = _PLACEHOLDER.sub(replacement, node.value)
        if len(self.findings.problems) > before:
            self.document.refused.add(path)
            return None
        return None if not text and node.style is None else text
