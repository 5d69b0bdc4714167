"""The keys of one entry of `backends:` and of `models:`, as tables.

The readers, the JSON schema and `docs/reference/settings.md` share them. Source: the contract's
section 3. Held by tests/settings/test_backends.py and test_models.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from lifeboat.core.vocabulary import Capability, Kind
from lifeboat.settings.quantities import Duration, Integer, Number, TokenCap
from lifeboat.settings.scaling import CommandLine
from lifeboat.settings.texts import FilePath, FreeMapping, Key, Text, Words
from lifeboat.settings.values import Boolean, Choice, ValueType

NAME = Text(
    "a name of letters, digits, dots, dashes and underscores, at most 100",
    form=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    longest=100,
)
"""A backend's name: it stands in URLs, metrics and headers."""

MODEL = Text("a model name without control characters, at most 256", longest=256)
"""A model's name: whatever servers call theirs."""

URL = Text("a URL, http://HOST:PORT or https://HOST:PORT, with a path prefix or without")
"""Only the outer form; `urls` judges the parts."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of an entry.

    key: as in the file, dotted where nested. attribute: of the dataclass that it fills.
    default: as the docs say it.
    """

    key: str
    attribute: str
    kind: ValueType
    default: str
    doc: str


_TIMEOUT = Duration(0, 604_800, above=True)

BACKEND_ENTRIES: tuple[Entry, ...] = (
    Entry(
        "name", "name", NAME, "host-port of the url",
        "Unique; used in metrics, state and the X-Lifeboat-Backend header.",
    ),
    Entry(
        "kind", "kind", Choice(tuple(kind.value for kind in Kind)), "openai",
        "What software it is: gguf is a llama.cpp server; simulated without a url runs embedded.",
    ),
    Entry("url", "url", URL, "none", "Where it listens, without the `/v1` of its paths."),
    Entry(
        "models", "models", Words(MODEL, "model names"), "its own list",
        "The models it serves; left out, its `/v1/models` is read and refreshed.",
    ),
    Entry(
        "max_concurrency", "max_concurrency", Integer(0, 1_000_000), "the kind's default",
        "Most requests in flight; 0 disables its gate. Keep it at or below a gguf server's slots.",
    ),
    Entry(
        "adaptive", "adaptive", Boolean(), "as its pools say",
        "Whether its limit is learned from how its requests end, between 1 and max_concurrency.",
    ),
    Entry(
        "max_input_tokens", "max_input_tokens", TokenCap(), "0",
        "The largest input it takes; 0 is no cap, an estimate equal to the cap fits, auto is the "
        "engine's own.",
    ),
    Entry(
        "exact_border", "exact_border", Boolean(), "false",
        "Whether its own tokenizer decides where an estimate is within 15 % of its input cap "
        "(gguf, vllm and simulated; one short request to it each time).",
    ),
    Entry(
        "serves", "serves",
        Words(Choice(tuple(capability.value for capability in Capability)), "capabilities"),
        "[generate]", "What it can do.",
    ),
    Entry(
        "api_key", "api_key", Key(may_be_empty=True), "none",
        "Sent to it as `Authorization: Bearer`, in place of what the client sent. Given but empty, "
        "no credentials go there at all, the client's neither.",
    ),
    Entry("connect_timeout", "connect_timeout_s", _TIMEOUT, "the setting", "Its own, in seconds."),
    Entry(
        "first_byte_timeout", "first_byte_timeout_s", _TIMEOUT, "the setting",
        "Its own, in seconds.",
    ),
    Entry("idle_timeout", "idle_timeout_s", _TIMEOUT, "the setting", "Its own, in seconds."),
    Entry(
        "tls.ca_file", "tls_ca_file", FilePath(), "the system's",
        "Certificates (PEM) that may sign the server's.",
    ),
    Entry(
        "tls.verify", "tls_verify", Boolean(), "true",
        "Whether its certificate is checked at all.",
    ),
    Entry(
        "simulate", "simulate", FreeMapping(), "{}",
        "What an embedded simulated backend imitates.",
    ),
    Entry(
        "replicas", "replicas", Integer(1, 10_000), "none",
        "Makes that many backends: name-1, name-2 and so on.",
    ),
)  # fmt: skip

MODEL_ENTRIES: tuple[Entry, ...] = (
    Entry("alias_of", "alias_of", MODEL, "none", "The model that this name stands for."),
    Entry(
        "default", "default", Boolean(), "false",
        "Taken where a path's protocol lets the model be left out.",
    ),
    Entry(
        "max_requests_per_minute", "max_requests_per_minute", Integer(1, 1_000_000_000), "no limit",
        "Over it: 429 `rate_limited`. Aliases share it.",
    ),
    Entry(
        "adaptive", "adaptive", Boolean(), "false",
        "Whether its backends learn their limits; one that says `adaptive: false` does not.",
    ),
    Entry("queue.enabled", "enabled", Boolean(), "the setting", "Whether its requests park."),
    Entry("queue.ttl", "ttl_s", _TIMEOUT, "the setting", "This pool's TTL."),
    Entry("queue.max_depth", "max_depth", Integer(0, 10_000_000), "the setting", "Its ceiling."),
    Entry(
        "scaling.backend", "scaling_backend", NAME, "none",
        "The embedded simulated backend (its name without the number) whose replicas come and go.",
    ),
    Entry(
        "scaling.command", "scaling_command", CommandLine(), "none",
        "Instead: a program and its arguments, run without a shell to change the number of "
        "replicas; `{model}`, `{desired}` and `{current}` are filled in.",
    ),
    Entry(
        "scaling.timeout", "scaling_timeout_s", _TIMEOUT, "60",
        "How long the command may take, in seconds, before it is ended.",
    ),
    Entry(
        "scaling.min", "least", Integer(0, 10_000), "1",
        "Fewest replicas; 0 lets the pool go to sleep, and the first request is held and wakes it.",
    ),
    Entry("scaling.max", "most", Integer(1, 10_000), "none", "Most replicas; must be given."),
    Entry(
        "scaling.target", "target", Number(0, 1, above=True), "0.7",
        "The part of its slots that the pool should use.",
    ),
    Entry(
        "scaling.sustain", "sustain_s", _TIMEOUT, "300",
        "How long a demand must last before replicas are added for it, in seconds.",
    ),
    Entry(
        "scaling.startup", "startup_s", Duration(0, 604_800), "300",
        "How long a replica takes until it serves, in seconds.",
    ),
    Entry(
        "scaling.scale_down_delay", "scale_down_delay_s", _TIMEOUT, "600",
        "How long replicas must have been superfluous before they go, in seconds.",
    ),
    Entry(
        "scaling.panic", "panic_factor", Number(0, 1000), "2",
        "A demand of so many times the present slots, for a tenth of `sustain`, adds replicas at "
        "once; 0 is off.",
    ),
)  # fmt: skip
