"""How long intake and estimate keep the event loop from its other work, on hostile bodies.

    python -m bench.hostile_body

A ticker takes every turn of the loop it can get; the longest CPU time of the process between two
of its turns is the longest stall. The target is 50 ms (issue 2). Bodies come one at a time, then
32 of 8 MiB at once, each counted by the tokenizer against a cap of 8,192 in its worker thread.
CPU time of the whole process: work of the worker threads between two turns is in it too.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from collections.abc import Awaitable, Callable

from lifeboat.core.estimate import bounds, needs_count, quick
from lifeboat.core.protocol import Protocol
from lifeboat.counting import TokenCounter
from lifeboat.edge.bodyscan import BodyError, parse_json
from lifeboat.edge.slices import Turnstile

MIB = 1_048_576
CAP_TOKENS = 8_192


def _chat(filling: bytes, size_bytes: int) -> bytes:
    return b'{"model":"m","messages":[' + filling * (size_bytes // len(filling)) + b"1]}"


def _prompt(text: bytes, size_bytes: int) -> bytes:
    head = b'{"model":"m","messages":[{"role":"user","content":"'
    return head + text * (size_bytes // len(text)) + b'"}]}'


async def _handle(body: bytes, counter: TokenCounter, turnstile: Turnstile) -> str:
    try:
        parsed = await parse_json(body, Protocol.CHAT, yield_now=turnstile.turn)
    except BodyError as fault:
        return str(fault)
    estimate = quick(parsed.shape)
    if needs_count(estimate, [CAP_TOKENS], bounds(parsed.shape)):
        estimate = await counter.count(parsed.shape, CAP_TOKENS) or estimate
    return f"{estimate.tokens:,} tokens, {estimate.method}"


async def _watch(label: str, work: Callable[[], Awaitable[object]]) -> None:
    stalls: list[float] = []
    last = began = time.process_time()
    last_thread = time.thread_time()
    own: list[float] = []
    running = True

    async def tick() -> None:
        nonlocal last, last_thread
        while running:
            now, thread = time.process_time(), time.thread_time()
            stalls.append(now - last)
            own.append(thread - last_thread)
            last, last_thread = now, thread
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(tick())
        result = await work()
        running = False
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"{label:34} longest stall {max(stalls) * 1e3:6.1f} ms (the loop's own thread "
        f"{max(own) * 1e3:5.1f})  CPU {spent:5.2f} s  peak {peak} MiB  {result}"
    )


async def _main() -> None:
    counter, turnstile = TokenCounter("cl100k_base"), Turnstile()
    await asyncio.to_thread(counter.load)
    gc.collect()
    gc.freeze()  # as the runtime should: a full collection over a warm heap is a stall of its own
    sentence = b"Some words that any prompt may have in it. "
    for label, make in (
        ("[],[],... 64 MiB", lambda: _chat(b"[],", 64 * MIB)),
        ("[],[],... 999,000 values", lambda: _chat(b"[],", 2_990_000)),
        ("[1],[1],... 990,000 values", lambda: _chat(b"[1],", 1_980_000)),
        ('{"a":1},... 6 MiB', lambda: _chat(b'{"a":1},', 3 * MIB)),
        ('"ab","ab",... 4 MiB', lambda: _chat(b'"ab",', 4 * MIB)),
        ("200,000 fields", lambda: b'{"model":"m"' + b',"a":1' * 200_000 + b"}"),
        ("a 64 MiB prompt", lambda: _prompt(sentence, 64 * MIB)),
        ("a 64 MiB prompt of \\n", lambda: _prompt(b"\\n", 64 * MIB)),
        ("a 64 MiB prompt of \\u4e2d", lambda: _prompt(b"\\u4e2d", 64 * MIB)),
        ("64 MiB of back slashes", lambda: b'{"a":"' + b"\\" * 64 * MIB),
        ("an 8 MiB prompt of blanks", lambda: _prompt(b" ", 8 * MIB)),
        ("1 MiB, parsed at once", lambda: _prompt(sentence, MIB - 200)),
        ("19,000 values, parsed at once", lambda: _chat(b"[],", 28_000)),
    ):
        body = make()
        await _watch(label, lambda body=body: _handle(body, counter, turnstile))

    # Made before the watch begins: 256 MiB of copying is the bench's work, not intake's.
    bodies = [_prompt(sentence, 8 * MIB) for _ in range(32)]

    async def together() -> str:
        results = await asyncio.gather(*(_handle(body, counter, turnstile) for body in bodies))
        return results[0]

    await _watch("32 prompts of 8 MiB at once", together)
    counter.close()


if __name__ == "__main__":
    asyncio.run(_main())
