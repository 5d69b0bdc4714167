"""The reckoning: what clients were told, what reached the engines, what the router says of it.

The router's access log has one line a request, its terminal event. Every request of the storm is
followed through all three, and the metrics must be the sums of the lines.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.storm.clients import STAYED, Outcome, Told
from bench.storm.engines import GOES_ON, Book, End, Send
from bench.storm.laws import Law, Laws, differences

SEEN_GONE_S = 3.0
"""A client that has left is known to have left within this, on a machine as busy as it may be."""
MOST_WORKED_ON = 3
MOST_SENDS = 64
MOST_LOST = 2
"""Once on a fresh connection to the same backend, once elsewhere."""

Line = dict[str, Any]


def read_log(log: Path, laws: Laws) -> dict[str, list[Line]]:
    """Return the terminal events by request id; what is an error in the log is a breach."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for text in log.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            line = {"level": "error"}
        if line.get("event") == "request":
            lines[line["request_id"]].append(line)
        laws.check(
            Law.LOG, line["level"] not in ("error", "critical") and "exception" not in line, text
        )
    return lines


def reckon(told: Iterable[Told], book: Book, lines: dict[str, list[Line]], laws: Laws) -> None:
    """Hold every request to the laws of its whole life."""
    for one in told:
        if not one.request_id:
            continue
        found = lines.get(one.request_id, [])
        sends = book.get(one.request_id, [])
        _lines(one, found, sends, laws)
        _resent(one, sends, laws)
        if one.outcome is Outcome.CUT:
            by_engine = bool(sends) and sends[-1].end in (End.CUT, End.RESET)
            by_client = one.slow and any(line["client_gone"] for line in found)
            laws.check(Law.CUT, by_engine or by_client, f"{one} {sends}")
        if one.outcome is Outcome.ANSWERED:
            ended = [send.end for send in sends].count(End.ANSWERED)
            laws.check(Law.CUT, ended == 1 and sends[-1].end is End.ANSWERED, f"{one} {sends}")


def _lines(one: Told, found: list[Line], sends: list[Send], laws: Laws) -> None:
    if one.outcome not in STAYED:
        # Its head may never have been read.
        laws.check(Law.ONE_LINE, len(found) <= 1, f"{one} {found}")
        return
    says_the_same = len(found) == 1 and (
        found[0]["status"] == one.status
        and found[0]["reason"] == one.reason
        and found[0]["attempts"] >= len(sends)
        and (one.outcome is not Outcome.ANSWERED or found[0]["answer_bytes"] == one.body_bytes)
    )
    laws.check(Law.ONE_LINE, says_the_same, f"{one} {sends} {found}")


def _resent(one: Told, sends: list[Send], laws: Laws) -> None:
    ends = [send.end for send in sends]
    earlier = ends[:-1]
    lost = sum(end in (End.LOST, End.RESET) for end in earlier)
    worked_on = sum(end is not End.REFUSED for end in ends)
    allowed = (
        GOES_ON.issuperset(earlier)
        and End.RUNNING not in ends
        and lost <= MOST_LOST
        and worked_on <= MOST_WORKED_ON
        and len(ends) <= MOST_SENDS
    )
    laws.check(Law.RESENT, allowed, f"{one} {sends}")
    if one.outcome is Outcome.LEFT:
        late = [send for send in sends if send.at > one.ended_at + SEEN_GONE_S]
        laws.check(Law.THE_GONE, not late, f"{one} {late}")


def reckon_metrics(
    metrics: dict[str, float], lines: dict[str, list[Line]], book: Book, laws: Laws
) -> None:
    """Hold the counters to the sums of the terminal events, and dispatches to the books."""
    summed: Counter[str] = Counter()
    for line in (line for found in lines.values() for line in found):
        if line["reason"] is not None:
            summed[f"rejected {line['reason']}"] += 1
        elif line["status"] != 499 and line["backend"] is not None:
            summed[f"responses {line['backend']} {line['status']}"] += 1
        if line["client_gone"]:
            summed[f"client_disconnects {line['client_gone']}"] += 1
        for cause in (line["retry_causes"] or "").split(","):
            if cause:
                summed[f"retries {cause}"] += 1
    counted: Counter[str] = Counter()
    for name, value in metrics.items():
        metric, _, labels = name.removeprefix("lifeboat_lb_").partition("_total{")
        values = dict(part.split("=") for part in labels.rstrip("}").split(",") if "=" in part)
        values.pop("pool", None)
        if metric in ("rejected", "responses", "client_disconnects", "retries"):
            counted[" ".join((metric, *(v.strip('"') for v in values.values())))] += int(value)
    laws.check(Law.COUNTED, summed == counted, differences(summed, counted))
    dispatched = sum(v for name, v in metrics.items() if "lb_dispatch_total{" in name)
    arrived = sum(map(len, book.values()))
    attempts = sum(line["attempts"] for found in lines.values() for line in found)
    fits = arrived <= attempts and dispatched <= attempts
    laws.check(Law.COUNTED, fits, f"{arrived} arrived, {dispatched} sent, {attempts} attempts")
