"""The exact count: tiktoken over vocabulary files carried in the package, and a small worker pool.

Imports `lifeboat.core` only, and never the network: an encoding is built from the ranks beside
this file.
"""

from __future__ import annotations

from lifeboat.counting.counter import TokenCounter
from lifeboat.counting.encodings import ENCODING_NAMES, load_encoding

__all__ = ["ENCODING_NAMES", "TokenCounter", "load_encoding"]
