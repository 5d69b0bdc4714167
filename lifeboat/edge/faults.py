"""What can be wrong with a body: the message names the value or place, the rule and the remedy."""

from __future__ import annotations


class BodyError(ValueError):
    """The body cannot be routed: 400 `invalid_request`."""


class UnsupportedEncodingError(BodyError):
    """The body is compressed in a way that cannot be undone here."""


class BodyTooLargeError(BodyError):
    """The body is larger than the limit once decoded: 413 `body_too_large`."""
