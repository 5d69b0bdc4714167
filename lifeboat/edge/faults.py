"""What can be wrong with a body: the message names the value or place, the rule and the remedy."""

from __future__ import annotations

from typing import ClassVar


class BodyError(ValueError):
    """The body cannot be routed: 400 `invalid_request`.

    advice: what to do about it, where that of the rejection table is about something else.
    """

    advice: ClassVar[str | None] = None


class BrokenFramingError(BodyError):
    """Where the body ends cannot be told: its chunks are broken."""

    advice = "Look at what sends it, or stands between: its chunks are not those of HTTP/1.1."


class SlowBodyError(BodyError):
    """A body did not come in time; the text says how it came, and what to do."""

    advice = "Send the body without pauses, or raise LIFEBOAT_CLIENT_BODY_TIMEOUT_SEC."


class CompressedBodyError(BodyError):
    """The body is compressed, and not as its header says."""

    advice = "Send the body plain, or compressed as its Content-Encoding says."


class UnsupportedEncodingError(CompressedBodyError):
    """The body is compressed in a way that cannot be undone here."""


class UploadError(BodyError):
    """The body is no multipart upload that can be read."""

    advice = "Send multipart/form-data, its boundary in Content-Type, with a text field `model`."


class BodyTooLargeError(BodyError):
    """The body is larger than the limit once decoded: 413 `body_too_large`."""
