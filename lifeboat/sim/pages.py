"""What a server tells of itself: health, models, slots, and llama.cpp's properties."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from lifeboat.sim.config import Personality
from lifeboat.sim.refusal import Refused, engine_gone, unknown_model
from lifeboat.sim.served import ServedModel
from lifeboat.sim.wire import json_response


class Pages:
    """The reports of one server. created: unix seconds of its start."""

    def __init__(
        self,
        models: list[ServedModel],
        personality: Personality,
        registry: CollectorRegistry,
        created: int,
    ) -> None:
        self._models = models
        self._personality = personality
        self._registry = registry
        self._created = created

    async def health(self, request: web.Request) -> web.Response:
        """200 while every model has an engine; vLLM's body is empty."""
        if not all(model.alive for model in self._models):
            raise engine_gone()
        if self._personality is Personality.VLLM:
            return web.Response()
        return json_response({"status": "ok"})

    async def models(self, request: web.Request) -> web.Response:
        """Every name of every model."""
        cards = [self._card(model, name) for model in self._models for name in model.names]
        return json_response({"object": "list", "data": cards})

    async def model(self, request: web.Request) -> web.Response:
        """One of them."""
        name = request.match_info["name"]
        for model in self._models:
            if name in model.names:
                return json_response(self._card(model, name))
        raise unknown_model(name)

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus text."""
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def props(self, request: web.Request) -> web.Response:
        """llama.cpp's properties: its slots, and the context that each one has."""
        model = self._models[0]
        return json_response(
            {
                "default_generation_settings": {"n_ctx": model.context_tokens},
                "total_slots": model.max_num_seqs,
                "model_alias": model.names[0],
                "model_path": f"{model.config.model}.gguf",
                "chat_template": "",
                "build_info": "lifeboat-sim",
            }
        )

    async def slots(self, request: web.Request) -> web.Response:
        """llama.cpp's slots; who waits is not among them. `?fail_on_no_slot=1`: 503 when full."""
        model = self._models[0]
        model.look()
        running = model.running
        if request.query.get("fail_on_no_slot") == "1" and running >= model.max_num_seqs:
            raise Refused(503, {"error": {"code": 503, "message": "no slot available"}})
        return json_response(
            [
                {"id": at, "n_ctx": model.context_tokens, "is_processing": at < running}
                for at in range(max(model.max_num_seqs, running))
            ]
        )

    def _card(self, model: ServedModel, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "lifeboat-sim",
            "root": model.names[0],
            "parent": None,
            "max_model_len": model.context_tokens,
        }
