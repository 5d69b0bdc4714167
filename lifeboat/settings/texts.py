"""Words, paths, addresses, secrets and lists of them.

Held by tests/settings/test_values.py.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lifeboat.settings.values import BadValueError, JsonSchema, ValueType, or_placeholder


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a given form.

    form: a regular expression that the whole text must match; by default all but control characters
        and halves of surrogate pairs, which no page of state or metrics could show.
    longest: characters.
    """

    rule: str
    form: str = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
    longest: int = 4096

    def parse(self, raw: object, *, plain: bool = False) -> str:
        """Return the text without surrounding white space."""
        text = raw.strip() if isinstance(raw, str) else ""
        if not text or len(text) > self.longest or not re.fullmatch(self.form, text):
            hint = "" if isinstance(raw, str) else "Put it in quotes"
            raise BadValueError(hint)
        return text

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest}


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path in the file system; `~` is the home directory."""

    rule: str = "the path of a file"

    def parse(self, raw: object, *, plain: bool = False) -> Path:
        """Return the path; whether it exists is checked where it matters."""
        if not isinstance(raw, str) or not raw.strip() or "\x00" in raw:
            raise BadValueError
        try:
            return Path(raw.strip()).expanduser()
        except RuntimeError:
            raise BadValueError("Name a home directory that is there") from None

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HostPort:
    """An address to listen on, HOST:PORT."""

    rule: str = "HOST:PORT, an IPv6 host in brackets"

    def parse(self, raw: object, *, plain: bool = False) -> Address:
        """Return the address."""
        text = raw.strip() if isinstance(raw, str) else ""
        host, colon, port = text.rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise BadValueError
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not is_ipv6(host):
                raise BadValueError
        elif ":" in host:
            raise BadValueError("Put the IPv6 address in brackets")
        return Address(Host().parse(host), int(port))

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return or_placeholder(
            {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.%]+\]|[^:]+):[0-9]+$"}
        )


@dataclass(frozen=True, slots=True)
class Host:
    """A host name or an IP address, without brackets."""

    rule: str = "a host name or an IP address"

    def parse(self, raw: object, *, plain: bool = False) -> str:
        """Return the host."""
        text = raw.strip() if isinstance(raw, str) else ""
        if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})", text) and not is_ipv6(text):
            raise BadValueError
        return text

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "string", "minLength": 1}


def is_ipv6(text: str) -> bool:
    """Tell whether `text` is an IPv6 address, a zone included."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Words:
    """A list of texts of one type, without repeats."""

    item: ValueType
    what: str

    @property
    def rule(self) -> str:
        """Return the rule of the list and of its items."""
        return f"a list of {self.what}, at least one, each {self.item.rule}"

    def parse(self, raw: object, *, plain: bool = False) -> tuple[object, ...]:
        """Return the items in their order."""
        if not isinstance(raw, list) or not raw:
            raise BadValueError("Write [a, b]" if isinstance(raw, str) else "")
        items = [self.item.parse(item) for item in cast("list[object]", raw)]
        if len(set(items)) < len(items):
            raise BadValueError("Name each one once")
        return tuple(items)

    def schema(self) -> JsonSchema:
        """Return the schema."""
        items = self.item.schema()
        return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True}


@dataclass(frozen=True, slots=True)
class Keys:
    """Secret keys: a list, or one text with commas or line ends between them."""

    rule: str = "keys of visible ASCII characters, separated by commas"

    def parse(self, raw: object, *, plain: bool = False) -> tuple[str, ...]:
        """Return the keys, each once."""
        parts: list[object]
        if isinstance(raw, str):
            parts = [part for part in re.split(r"[,\r\n]", raw) if part.strip()]
        elif isinstance(raw, list):
            parts = cast("list[object]", raw)
        else:
            raise BadValueError
        keys = [Key().parse(part) for part in parts]
        if not keys:
            raise BadValueError
        return tuple(dict.fromkeys(keys))

    def schema(self) -> JsonSchema:
        """Return the schema."""
        text: JsonSchema = {"type": "string", "minLength": 1}
        return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}


@dataclass(frozen=True, slots=True)
class Key:
    """One secret, fit to stand in a header.

    may_be_empty: no text at all is a value of its own.
    """

    rule: str = "one key of visible ASCII characters, without a comma"
    may_be_empty: bool = False

    def parse(self, raw: object, *, plain: bool = False) -> str:
        """Return the key without surrounding white space."""
        text = raw.strip() if isinstance(raw, str) else ""
        if self.may_be_empty and isinstance(raw, str) and not text:
            return ""
        if not re.fullmatch(r"[!-+\--~]+", text):
            hint = "" if isinstance(raw, str) else "Put it in quotes"
            raise BadValueError(hint)
        return text

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "string", "minLength": 0 if self.may_be_empty else 1}


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of web pages: a list, or one text with commas between them; `*` is every one."""

    rule: str = "`*`, or origins such as https://app.example.com, separated by commas"

    def parse(self, raw: object, *, plain: bool = False) -> tuple[str, ...]:
        """Return the origins as browsers send them, each once."""
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not parts:
            raise BadValueError
        origins = [self._origin(part) for part in cast("list[object]", parts)]
        if "*" in origins and len(origins) > 1:
            raise BadValueError("Write * alone")
        return tuple(dict.fromkeys(origins))

    def _origin(self, raw: object) -> str:
        text = raw.strip().lower() if isinstance(raw, str) else ""
        if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[!-~]*", text):
            raise BadValueError
        if re.search(r"://.*[/?#@*]|://$", text):
            raise BadValueError("Write scheme://host:port, without a path")
        return text

    def schema(self) -> JsonSchema:
        """Return the schema."""
        text: JsonSchema = {"type": "string", "minLength": 1}
        return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}


@dataclass(frozen=True, slots=True)
class FreeMapping:
    """A mapping whose keys another part of the house knows."""

    rule: str = "a mapping of names to values"

    def parse(self, raw: object, *, plain: bool = False) -> dict[str, object]:
        """Return a copy of the mapping."""
        if not isinstance(raw, dict):
            raise BadValueError
        mapping = cast("dict[object, object]", raw)
        return {str(key): value for key, value in mapping.items()}

    def schema(self) -> JsonSchema:
        """Return the schema."""
        return {"type": "object"}
