"""HTTP/1.1 bytes: the leg to the backends, and what is needed of the client's connection."""

from __future__ import annotations
