"""The access log: one line per request, never a prompt, a query string or a key.

Source: issue "structured log" and the contract's `LIFEBOAT_LOG_FORMAT`. Invariants, held by
tests/observe/test_access_log.py: a line is one line whatever a client sent, always encodes, and
is bounded; a request costs the event loop one record, the formatting happens where it is written
(lifeboat.observe.log_pipe).
"""

from __future__ import annotations

import logging

import orjson

from lifeboat.observe.events import Finished
from lifeboat.observe.printable import ID_CHARS, MODEL_CHARS, PATH_CHARS, printable

access_logger = logging.getLogger("lifeboat.access")

Field = str | int | float | bool | None


class AccessLog:
    """The observer that logs each request at level info."""

    def finished(self, event: Finished, /) -> None:
        """Hand the event over as the record's message: its fields are rendered by the formatter."""
        if access_logger.isEnabledFor(logging.INFO):
            record = logging.LogRecord(
                access_logger.name, logging.INFO, __file__, 0, event, None, None
            )
            access_logger.handle(record)


def fields_of(event: Finished) -> dict[str, Field]:
    """Return what the log tells of a request, in the order in which it is written.

    Times in milliseconds; `wait_ms` and `ttfb_ms` add up to the client's time to first byte.
    """
    return {
        "request_id": printable(event.request_id, ID_CHARS),
        "method": printable(event.method, 16),
        "path": printable(event.path.partition("?")[0], PATH_CHARS),
        "model": _name(event.model),
        "pool": _name(event.pool),
        "backend": _name(event.backend),
        "status": event.status,
        "reason": None if event.reason is None else event.reason.value,
        "verdict": None if event.verdict is None else event.verdict.value,
        "wait_ms": _ms(event.wait_s),
        "ttfb_ms": None if event.ttfb_s is None else _ms(event.ttfb_s),
        "total_ms": _ms(event.total_s),
        "estimated_tokens": event.estimated_tokens,
        "estimate_method": event.estimate_method.value,
        "body_bytes": event.body_bytes,
        "answer_bytes": event.answer_bytes,
        "attempts": event.attempts,
        "retry_causes": ",".join(event.retry_causes) or None,
        "stream": event.stream,
        "client_gone": None if event.client_gone is None else event.client_gone.value,
        "priority": event.priority.value,
    }


def _name(name: str | None) -> str | None:
    return None if name is None else printable(name, MODEL_CHARS)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def text_of(event: Finished) -> str:
    """Return the fields as `key=value`; those without a value are left out."""
    fields = fields_of(event)
    head = f"{fields.pop('method')} {fields.pop('path')} {fields.pop('status')}"
    pairs = [f"{key}={_plain(value)}" for key, value in fields.items() if value is not None]
    return " ".join((head, *pairs))


def _plain(value: Field) -> str:
    if not isinstance(value, str):
        return str(value).lower()
    if value and not any(char in ' "=\\' for char in value):
        return value
    return orjson.dumps(value).decode()
