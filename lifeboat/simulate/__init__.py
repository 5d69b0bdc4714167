"""The whole router in virtual time: the real gate and the simulated engines on a jumping clock.

No sockets, no event loop, no waiting: hours of a trace take seconds, and the same trace, settings
and seed give the same figures (I14, tests/simulate/test_world.py). What is left out: the bytes, the
probes, the tokenizer (a request's estimate is its true size) and whatever clients do but wait.
"""

from __future__ import annotations
