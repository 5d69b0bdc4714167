"""The HTTP server of simulated engines, by itself or embedded in another program's event loop.

    server = SimulatedServer([EngineConfig()])
    url = await server.start()
    ...
    await server.close()

`start` and `close` belong to the same event loop; the server owns one task per engine (and one
that opens the listener late where vLLM's start-up is imitated), all ended by `close`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from lifeboat.sim import bodies, control, tokens, vectors
from lifeboat.sim.config import ConfigError, EngineConfig, Personality
from lifeboat.sim.faults import HEADER, Fault, parse_fault
from lifeboat.sim.generate import ShapeMaker, generate
from lifeboat.sim.item_shapes import MessagesShape, ResponsesShape
from lifeboat.sim.metrics import registry_of
from lifeboat.sim.pages import Pages
from lifeboat.sim.problems import Problem
from lifeboat.sim.refusal import Refused, envelope, invalid, loading, unknown_model
from lifeboat.sim.served import ServedModel
from lifeboat.sim.shapes import ChatShape, CompletionShape, NativeShape
from lifeboat.sim.wire import json_response

_KEEPALIVE_S = 5.0
"""Both real servers close an idle connection after five seconds."""
_MOST_BODY_BYTES = 256 * 1024 * 1024
_MAX_FIELD_BYTES = 64 * 1024
_BACKLOG = 4096
"""Connections the kernel holds for us: a burst must not meet a full listen queue."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_GENERATING: dict[str, tuple[bodies.Reader, ShapeMaker]] = {
    "/v1/chat/completions": (bodies.chat_job, ChatShape),
    "/v1/completions": (bodies.completion_job, CompletionShape),
    "/v1/responses": (bodies.responses_job, ResponsesShape),
    "/v1/messages": (bodies.messages_job, MessagesShape),
}
_GENERATING_LLAMACPP: dict[str, tuple[bodies.Reader, ShapeMaker]] = {
    "/completion": (bodies.native_job, NativeShape),
    "/infill": (bodies.native_job, NativeShape),
}


class SimulatedServer:
    """Several models in one server; all of one personality."""

    def __init__(self, configs: list[EngineConfig]) -> None:
        _check_together(configs)
        self._configs = configs
        self._personality = configs[0].personality
        self.models: list[ServedModel] = []
        self._ready_at_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._engines: dict[str, list[asyncio.Task[None]]] = {}
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen and begin to load the models; return the base URL.

        With a start-up time, llama.cpp's manners answer 503 "Loading model" until it is over;
        vLLM's do not listen yet: connections are refused. Raises OSError when the address is
        taken.
        """
        loop = asyncio.get_running_loop()
        self._socket = _bind(host, port)
        self.models = [ServedModel(config, loop.time) for config in self._configs]
        startup_s = max(config.startup_s * config.time_scale for config in self._configs)
        self._ready_at_s = loop.time() + startup_s
        self._runner = web.AppRunner(
            self._application(),
            # A client that leaves must free its sequence.
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S,
            # What a router in front takes of headers, it may hand on.
            max_line_size=_MAX_FIELD_BYTES,
            max_field_size=_MAX_FIELD_BYTES,
            access_log=None,
            shutdown_timeout=1.0,
        )
        await self._runner.setup()
        site = web.SockSite(self._runner, self._socket, backlog=_BACKLOG)
        for model in self.models:
            tasks = [asyncio.create_task(driver.run()) for driver in model.drivers]
            self._engines[model.names[0]] = tasks
            self._tasks += tasks
        if startup_s and self._personality is Personality.VLLM:
            self._tasks.append(asyncio.create_task(_listen_later(site, startup_s)))
        else:
            await site.start()
        bound_host, bound_port = self._socket.getsockname()[:2]
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        return f"http://{shown}:{bound_port}"

    @property
    def ready(self) -> bool:
        """Whether the models are loaded."""
        return asyncio.get_running_loop().time() >= self._ready_at_s

    async def stop_engines(self, name: str) -> None:
        """End the engines of a model while the server goes on: what a crash looks like."""
        await _end(self._engines[name])

    async def close(self) -> None:
        """End the engines and the listener; open streams break off. Idempotent."""
        tasks, self._tasks = self._tasks, []
        await _end(tasks)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def find(self, name: str | None) -> ServedModel:
        """Return the model of this name; raises Refused (404, or 400 where one must be named).

        A llama.cpp server with one model does not look at the name.
        """
        if len(self.models) == 1 and (name is None or self._personality is Personality.GGUF):
            return self.models[0]
        if name is None:
            names = ", ".join(name for model in self.models for name in model.names)
            raise invalid(f"`model` is needed: one of {names}.", "model")
        for model in self.models:
            if name in model.names:
                return model
        raise unknown_model(name)

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._answer_refusals], client_max_size=_MOST_BODY_BYTES)
        route = app.router
        generating = dict(_GENERATING)
        for prefix in ("/v1", ""):
            route.add_post(f"{prefix}/rerank", self._with_fault(vectors.rerank))
            route.add_post(f"{prefix}/score", self._with_fault(vectors.score))
        route.add_post("/v2/rerank", self._with_fault(vectors.rerank))
        route.add_post("/v1/embeddings", self._with_fault(vectors.embeddings))
        route.add_post("/v1/messages/count_tokens", self._plain(tokens.count_message_tokens))
        route.add_post("/tokenize", self._plain(tokens.tokenize))
        route.add_post("/detokenize", self._plain(tokens.detokenize))
        registry = registry_of(self.models, llamacpp=self._personality is Personality.GGUF)
        pages = Pages(self.models, self._personality, registry, int(time.time()))
        route.add_get("/health", pages.health)
        route.add_get("/v1/models", pages.models)
        route.add_get("/v1/models/{name:.+}", pages.model)
        route.add_get("/metrics", pages.metrics)
        route.add_get("/control/capacity", self._show_capacity)
        route.add_post("/control/capacity", self._change_capacity)
        if self._personality is Personality.GGUF:
            generating |= _GENERATING_LLAMACPP
            route.add_post("/embedding", self._with_fault(vectors.native_embedding))
            route.add_post("/apply-template", self._plain(tokens.apply_template))
            route.add_get("/props", pages.props)
            route.add_get("/slots", pages.slots)
        for path, (read, shape) in generating.items():
            route.add_post(path, self._generating(read, shape))
        return app

    def _generating(self, read: bodies.Reader, make_shape: ShapeMaker) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await generate(request, self.find, read, make_shape, self._fault(request))

        return handle

    def _with_fault(
        self,
        handler: Callable[[web.Request, vectors.Find, Fault | None], Awaitable[web.StreamResponse]],
    ) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request, self.find, self._fault(request))

        return handle

    def _plain(
        self, handler: Callable[[web.Request, tokens.Find], Awaitable[web.Response]]
    ) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request, self.find)

        return handle

    def _fault(self, request: web.Request) -> Fault | None:
        header = request.headers.get(HEADER)
        if header is None or not self._configs[0].enable_faults:
            return None
        return parse_fault(header)

    @web.middleware
    async def _answer_refusals(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Turn refusals and unknown routes into JSON with the personality's manners."""
        try:
            if self._personality is Personality.GGUF and not self.ready:
                raise loading()
            return await handler(request)
        except Refused as refused:
            return json_response(refused.body, refused.status)
        except RecursionError:
            deep = invalid("The body is nested too deeply.")
            return json_response(deep.body, deep.status)
        except web.HTTPException as error:
            return self._foreign(error)

    def _foreign(self, error: web.HTTPException) -> web.Response:
        if self._personality is Personality.VLLM:
            payload: dict[str, Any] = {"detail": error.reason}
        else:
            kind = "not_found_error" if error.status == 404 else "invalid_request_error"
            message = "File Not Found" if error.status == 404 else error.reason
            payload = envelope(message, kind, error.status)
        response = json_response(payload, error.status)
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response

    async def _show_capacity(self, request: web.Request) -> web.Response:
        return json_response(control.rows(self.models))

    async def _change_capacity(self, request: web.Request) -> web.Response:
        return await control.retune(request, self.models)


def _bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet; raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _listen_later(site: web.SockSite, startup_s: float) -> None:
    await asyncio.sleep(startup_s)
    await site.start()


def _check_together(configs: list[EngineConfig]) -> None:
    """Raise ConfigError when the engines cannot share a server."""
    problems: list[Problem] = []
    if not configs:
        problems.append(Problem("models", [], "a server needs at least one", "Add a model."))
    if len({config.personality for config in configs}) > 1:
        found = sorted({str(config.personality) for config in configs})
        problems.append(
            Problem(
                "personality",
                found,
                "the models of one server share one",
                "Start a server for each.",
            )
        )
    names = [name for config in configs for name in config.names]
    problems += [
        Problem(
            "served_name",
            name,
            "each name is served once",
            "Use `replicas`, or give the engines different names.",
        )
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise ConfigError(problems)
