"""I8: the table is total, and its (status, reason) pairs are the published ones."""

from __future__ import annotations

import pytest

from lifeboat.core.rejections import MISSING_CAPABILITY, REJECTIONS, ErrorType, status_of
from lifeboat.core.vocabulary import Capability, Reason

# status, wire reason, x-should-retry: false, type, routing_mode and effective_limit in the body.
PUBLISHED = [
    (503, None, False, "overloaded_error", True),
    (503, "queue_full", False, "overloaded_error", True),
    (504, "queue_timeout", False, "timeout_error", True),
    (413, "request_too_large", True, "invalid_request_error", False),
    (503, "no_backends", True, "overloaded_error", True),
    (503, "embedding_only_pool", True, "overloaded_error", True),
    (501, "no_embedding_backend", True, "invalid_request_error", False),
    (501, "no_diffusion_backend", True, "invalid_request_error", False),
    (501, "no_rerank_backend", True, "invalid_request_error", False),
    (501, "no_audio_backend", True, "invalid_request_error", False),
    (400, "invalid_request", True, "invalid_request_error", False),
    (413, "body_too_large", True, "invalid_request_error", False),
    (429, "rate_limited", False, "overloaded_error", True),
    (401, "unauthorized", True, "invalid_request_error", False),
    (503, "shutting_down", False, "overloaded_error", True),
    (502, "backend_unreachable", False, "api_error", True),
    (504, "backend_timeout", True, "timeout_error", True),
]


def test_the_table_is_the_published_one() -> None:
    assert [
        (
            row.status,
            row.wire_reason,
            row.retry_is_pointless,
            row.error_type.value,
            row.about_capacity,
        )
        for row in REJECTIONS.values()
    ] == PUBLISHED


def test_every_reason_has_a_row_under_its_own_name() -> None:
    assert set(REJECTIONS) == set(Reason)
    for reason, row in REJECTIONS.items():
        assert row.reason is reason
        assert row.wire_reason == (None if reason is Reason.GATE else reason.value)
        assert row.when and row.advice


@pytest.mark.parametrize("setting", [503, 429, 529])
def test_only_the_gate_and_queue_full_take_the_configured_status(setting: int) -> None:
    changed = {
        reason for reason in Reason if status_of(reason, setting) != REJECTIONS[reason].status
    }
    assert changed == (set() if setting == 503 else {Reason.GATE, Reason.QUEUE_FULL})
    assert status_of(Reason.GATE, setting) == status_of(Reason.QUEUE_FULL, setting) == setting


def test_every_capability_but_generate_has_a_501() -> None:
    assert set(MISSING_CAPABILITY) == set(Capability) - {Capability.GENERATE}
    assert {REJECTIONS[reason].status for reason in MISSING_CAPABILITY.values()} == {501}


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (Reason.GATE, "max_concurrency"),
        (Reason.GATE, "queue-all"),
        (Reason.QUEUE_FULL, "does not create capacity"),
        (Reason.QUEUE_TIMEOUT, "longer TTL moves the failure, not the cause"),
        (Reason.REQUEST_TOO_LARGE, "max_input_tokens"),
        (Reason.NO_BACKENDS, "name"),
    ],
)
def test_the_advice_names_what_to_change(reason: Reason, word: str) -> None:
    assert word in REJECTIONS[reason].advice


def test_types_are_the_four_of_the_envelope() -> None:
    assert {row.error_type for row in REJECTIONS.values()} == set(ErrorType)
