"""A simulated engine: what a continuous-batching model server does under load, without a GPU.

From the inside out: `cost` (how long a step takes), `kv` and `scheduler` (what a step holds),
`engine` (virtual time), `driver` (virtual time against the clock), `server` (HTTP).
The first three rings are pure and deterministic: same requests, same run (I14).
"""

from __future__ import annotations
