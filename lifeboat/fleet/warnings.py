"""What an operator should know of the fleet: sentences that name the value and the remedy.

A pure function of what is known; the same sentences stand in the state, the log and the dashboard.
What follows from the gate's live state (the slot trap, two names for one url, a queue inside an
engine) is `observe.warnings`'.
Held by tests/fleet/test_warnings.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lifeboat.core.vocabulary import Kind
from lifeboat.fleet.known import Known

FOREIGN_READINGS = 3
"""Readings in a row that must show more inside an engine than ours: one may cross a request that
just ended."""


def fleet_warnings(
    backends: Iterable[Known],
    in_flight: Mapping[str, int],
    hidden_aliases: Iterable[str],
    gguf_default: int,
) -> dict[str, list[str]]:
    """Return the warnings per backend; "" holds those of the whole fleet.

    gguf_default: the limit of a gguf backend whose slots nobody knows.
    """
    found: dict[str, list[str]] = {}
    for known in backends:
        texts = [
            *_limit_warnings(known, gguf_default),
            *_cap_warnings(known),
            *_reach_warnings(known),
            *_foreign_warnings(known, in_flight.get(known.member.name, 0)),
        ]
        if texts:
            found[known.member.name] = texts
    for alias in hidden_aliases:
        found.setdefault("", []).append(
            f"the alias {alias!r} has no effect: a backend lists a model of that name"
        )
    return found


def _limit_warnings(known: Known, gguf_default: int) -> Iterator[str]:
    slots_unknown = known.reading is None or known.reading.slots is None
    if known.member.kind is Kind.GGUF and known.max_concurrency is None and slots_unknown:
        yield (
            f"its slots are unknown and no max_concurrency is set: {gguf_default} is assumed; set "
            "max_concurrency to its slots (llama-server --parallel)"
        )


def _cap_warnings(known: Known) -> Iterator[str]:
    own, cap = known.engine_cap, known.input_cap
    if cap == "auto":
        if own is None:
            yield "max_input_tokens is auto, but its own cap is unknown: no cap is applied"
    elif own is not None and cap > own:
        yield (
            f"max_input_tokens {cap} is above its own cap of {own}, so it will refuse what lies "
            f"between; set it to {own}, or to auto"
        )


def _reach_warnings(known: Known) -> Iterator[str]:
    fault, listing = known.listing_fault, known.listing
    if fault is not None:
        state = "its models are not known" if listing is None else "its models may be out of date"
        yield f"{state}: {fault}"
    elif listing is not None and known.discovers:
        if not listing.models:
            yield "it lists no models, so nothing is sent to it"
        if listing.skipped:
            yield f"{listing.skipped} entries of its model list cannot be used"
    if not known.member.tls_verify and known.member.url.startswith("https:"):
        yield "its certificate is not checked (tls.verify is false)"


def _foreign_warnings(known: Known, in_flight: int) -> Iterator[str]:
    if known.foreign >= FOREIGN_READINGS and known.reading is not None:
        inside = (known.reading.running or 0) + (known.reading.waiting or 0)
        yield (
            f"its engine holds {inside} requests, {in_flight} of them from this router: somebody "
            "else sends to it, and its limit here does not count that"
        )
