"""`/control/capacity`: read and turn the two knobs of a running server, as the seed defines it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from lifeboat.sim.bodies import model_of, parse_json
from lifeboat.sim.refusal import invalid, unknown_model
from lifeboat.sim.served import ServedModel
from lifeboat.sim.wire import json_response

_FIELDS = ("model", "max_num_seqs", "max_waiting")


def rows(models: list[ServedModel]) -> list[dict[str, Any]]:
    """Return the knobs and the live depth of every model."""
    return [model.row() for model in models]


async def retune(request: web.Request, models: list[ServedModel]) -> web.Response:
    """Apply a change, all of it or nothing, and answer with the rows after it."""
    body = parse_json(await request.read())
    unknown = [key for key in body if key not in _FIELDS]
    if unknown:
        raise invalid(f"unknown field `{unknown[0]}`: known are {', '.join(_FIELDS)}.", unknown[0])
    max_num_seqs = _knob(body, "max_num_seqs", least=1)
    max_waiting = _knob(body, "max_waiting", least=0)
    name = model_of(body)
    chosen = [model for model in models if name is None or name in model.names]
    if name is not None and not chosen:
        raise unknown_model(name)
    for model in chosen:
        model.retune(max_num_seqs, max_waiting)
    return json_response(rows(models))


def _knob(body: dict[str, Any], key: str, *, least: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        why = " (a cap of 0 would accept requests and never schedule them)" if least else ""
        raise invalid(f"`{key}` must be a whole number of at least {least}{why}.", key)
    return value
