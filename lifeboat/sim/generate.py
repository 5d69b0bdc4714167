"""The journey of a generating request: read, check, admit, then write tokens as they come.

Whether there is a place is decided before any byte of a response (the seed's rule); the one
exception is vLLM's own in-stream refusal, which is imitated because the real one does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

from aiohttp import web

from lifeboat.core.vocabulary import Capability
from lifeboat.sim.bodies import DEFAULT_MAX_TOKENS, Body, Job, parse_json
from lifeboat.sim.config import Personality
from lifeboat.sim.driver import EngineDriver, EngineGoneError, Reply, Saturated, TooManyInFlight
from lifeboat.sim.faults import Fault, FaultMode, close
from lifeboat.sim.refusal import (
    engine_gone,
    never_fits,
    not_offered,
    saturated,
    too_long,
    too_many_in_flight,
)
from lifeboat.sim.scheduler import Sequence
from lifeboat.sim.served import ServedModel
from lifeboat.sim.shapes import DONE, Output, Shape, Usage, data_frame, plan_output
from lifeboat.sim.text import TOKEN_BYTES, piece
from lifeboat.sim.wire import Broken, EventStream, send_whole

ShapeMaker = Callable[[str, str, int, Job], Shape]
"""(serial, model name, unix seconds, job) -> the shape of one answer."""


def admit(
    served: ServedModel, sequences: list[Sequence]
) -> tuple[EngineDriver, Reply] | TooManyInFlight:
    """Admit or refuse; raises Refused (529 when saturated, 503 when the engine is gone)."""
    try:
        answer = served.admit(sequences)
    except EngineGoneError:
        raise engine_gone() from None
    if isinstance(answer, Saturated):
        raise saturated(answer)
    return answer


def check_length(served: ServedModel, prompt_tokens: int, asked: int | None) -> int:
    """Return the output tokens a prompt may have; raises Refused (400) over the context length.

    asked: None = the default, cut to what the context leaves.
    """
    context = served.context_tokens
    personality = served.config.personality
    room = context - prompt_tokens
    # llama.cpp looks at the prompt alone and ends the answer where its context does.
    over = room < (asked or 1) if personality is Personality.VLLM else room < 1
    if over:
        raise too_long(personality, prompt_tokens, asked, context)
    return min(DEFAULT_MAX_TOKENS if asked is None else asked, room)


def check_input(served: ServedModel, tokens: int) -> None:
    """Check an input that is only prefilled; raises Refused (400) when it can never fit."""
    if tokens > served.context_tokens:
        raise too_long(served.config.personality, tokens, None, served.context_tokens)
    engine = served.drivers[0].engine
    if not engine.fits(Sequence(tokens, 0)):
        raise never_fits(tokens, 0, engine.cache_tokens)


class Generation:
    """One generating request against one served model."""

    def __init__(self, request: web.Request, served: ServedModel, job: Job) -> None:
        self._request = request
        self._served = served
        self._job = job
        self._outputs: list[Output] = []
        self._sequences: list[Sequence] = []
        for index, prompt in enumerate(job.prompts):
            allowed = check_length(served, prompt.tokens, job.max_tokens)
            seed = prompt.seed + index
            output = plan_output(job, seed, allowed, served.config.answer_tokens)
            sequence = Sequence(prompt.tokens, output.tokens)
            engine = served.drivers[0].engine
            if not engine.fits(sequence):
                raise never_fits(prompt.tokens, allowed, engine.cache_tokens)
            self._outputs.append(output)
            self._sequences.append(sequence)

    async def serve(self, make_shape: ShapeMaker, fault: Fault | None) -> web.StreamResponse:
        """Admit, compute and answer."""
        job = self._job
        answer = admit(self._served, self._sequences)
        if isinstance(answer, TooManyInFlight):
            return await self._overflow(answer)
        driver, reply = answer
        try:
            if fault is not None and fault.mode is FaultMode.SLOW_HEADERS:
                await fault.pause()
            name = job.model or self._served.names[0]
            shape = make_shape(uuid4().hex, name, int(time.time()), job)
            if job.stream:
                return await self._stream(reply, shape, fault)
            await reply.end()
            return await send_whole(self._request, shape.whole(self._outputs, self._usage()), fault)
        except EngineGoneError:
            raise engine_gone() from None
        finally:
            driver.withdraw(reply)
            self._served.observe(reply)

    def _usage(self) -> Usage | None:
        if self._job.hide_usage:
            return None
        prompts = self._job.prompts
        # What was charged: a prompt once for each of its choices (no prefix is shared).
        return Usage(
            sum(prompt.tokens for prompt in prompts), sum(output.tokens for output in self._outputs)
        )

    async def _overflow(self, found: TooManyInFlight) -> web.StreamResponse:
        """vLLM's own queue bound: a 503, or inside the stream, where it is too late for one."""
        refusal = too_many_in_flight(found)
        if not self._job.stream:
            raise refusal
        stream = EventStream(self._request, None)
        await stream.begin()
        await stream.send([data_frame(refusal.body), DONE])
        return stream.response

    async def _stream(self, reply: Reply, shape: Shape, fault: Fault | None) -> web.StreamResponse:
        stream = EventStream(self._request, fault)
        try:
            if self._served.config.personality is Personality.GGUF:
                # llama.cpp sends its head with the first result, so a request that waits for a
                # slot gets none; vLLM sends it at once.
                await reply.more_than(0)
            await stream.begin()
            await self._write_tokens(reply, shape, stream)
            usage = self._usage()
            await stream.send(shape.ending(self._outputs, usage))
            if fault is None or fault.mode is not FaultMode.NO_DONE:
                await stream.send(shape.last(self._outputs, usage))
        except Broken:
            pass
        except EngineGoneError:
            if not stream.response.prepared:
                raise
            close(self._request)
        return stream.response

    async def _write_tokens(self, reply: Reply, shape: Shape, stream: EventStream) -> None:
        """Write what has been emitted, wait for more, until every choice is closed."""
        seen = [0] * len(self._outputs)
        still_open = set(range(len(self._outputs)))
        while still_open:
            await reply.more_than(sum(seen))
            frames: list[bytes] = []
            for index in sorted(still_open):
                sequence, output = reply.sequences[index], self._outputs[index]
                if not seen[index] and sequence.emitted:
                    frames += shape.opening(index, sequence.prompt_tokens)
                for at in range(seen[index], sequence.emitted):
                    text = piece(output.seed, at)[: max(output.visible - at * TOKEN_BYTES, 0)]
                    if text:
                        frames.append(shape.token(index, text))
                seen[index] = sequence.emitted
                if sequence.ended:
                    frames += shape.closing(index, output)
                    still_open.discard(index)
            await stream.send(frames)


async def generate(
    request: web.Request,
    find: Callable[[str | None], ServedModel],
    read: Callable[[Body], Job],
    make_shape: ShapeMaker,
    fault: Fault | None,
) -> web.StreamResponse:
    """Serve one generating request; raises Refused before any byte was sent.

    find: the served model of a name.
    """
    job = read(parse_json(await request.read()))
    served = find(job.model)
    if Capability.GENERATE not in served.config.serves:
        raise not_offered(served.config.personality, embedding_asked=False)
    if fault is not None:
        await fault.before_head()
        job.hide_usage = fault.mode is FaultMode.NO_USAGE
    return await Generation(request, served, job).serve(make_shape, fault)
