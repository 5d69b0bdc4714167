"""Measures a model server step by step and finds the concurrency beyond which it gains nothing."""

from __future__ import annotations
