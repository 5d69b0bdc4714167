"""The endpoint table against the contract's section 4."""

from __future__ import annotations

import itertools

import pytest

from lifeboat.core.vocabulary import Capability
from lifeboat.edge.endpoints import (
    ENDPOINTS,
    BodyKind,
    Endpoint,
    LocalPath,
    MethodNotAllowed,
    ModelRule,
    NotFound,
    allow_for,
    match,
)

CONTRACT = {
    Capability.GENERATE: "/v1/chat/completions /v1/completions /v1/responses /v1/messages "
    "/v1/messages/count_tokens /completion /infill /tokenize /detokenize /apply-template",
    Capability.EMBED: "/v1/embeddings /embedding",
    Capability.RERANK: "/v1/rerank /rerank /v2/rerank /v1/score /score",
    Capability.TRANSCRIBE: "/v1/audio/transcriptions /v1/audio/translations",
    Capability.SPEECH: "/v1/audio/speech",
    Capability.IMAGE: "/v1/images/generations /v1/images/edits /v1/images/variations",
    Capability.VIDEO: "/v1/videos",
}
POSTED = [(path, cap) for cap, paths in CONTRACT.items() for path in paths.split()]
UNGATED = {"/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens"}


def row(method: str, path: str) -> Endpoint:
    found = match(method, path)
    assert isinstance(found, Endpoint), (method, path, found)
    return found


@pytest.mark.parametrize(("path", "capability"), POSTED)
def test_every_path_of_the_contract_takes_a_post(path: str, capability: Capability) -> None:
    found = row("POST", path)
    assert found.capability is capability
    assert found.protocol is not None
    assert found.gated is (path not in UNGATED)
    assert match("POST", path + "?beta=true") == found


def test_the_table_has_no_other_fixed_paths_than_the_contract() -> None:
    fixed = {endpoint.path for endpoint in ENDPOINTS if "{" not in endpoint.path}
    # Where the contract is silent: issue 5 names it.
    assert fixed == {path for path, _ in POSTED} | {"/v1/realtime"}


def test_only_reads_and_work_without_inference_take_no_slot() -> None:
    for endpoint in ENDPOINTS:
        if not endpoint.gated:
            assert "POST" not in endpoint.methods or (
                endpoint.path in UNGATED or endpoint.path == "/v1/responses/{id}/cancel"
            )


@pytest.mark.parametrize(
    ("method", "path", "object_id"),
    [
        ("GET", "/v1/videos/vid_1", "vid_1"),
        ("HEAD", "/v1/videos/vid_1", "vid_1"),
        ("DELETE", "/v1/videos/vid_1", "vid_1"),
        ("GET", "/v1/videos/vid_1/content?variant=x", "vid_1"),
        ("GET", "/v1/videos/a%2Fb/x/y", "a%2Fb"),
        ("POST", "/v1/videos/vid_1/remix", "vid_1"),
        ("GET", "/v1/responses/resp_1?stream=true", "resp_1"),
        ("DELETE", "/v1/responses/resp_1", "resp_1"),
        ("POST", "/v1/responses/resp_1/cancel", "resp_1"),
        ("GET", "/v1/responses/resp_1/input_items", "resp_1"),
    ],
)
def test_a_sub_path_goes_by_its_id(method: str, path: str, object_id: str) -> None:
    found = row(method, path)
    assert found.model is ModelRule.BY_ID
    assert found.object_id(path) == object_id
    assert found.gated is (path.endswith("/remix"))


def test_only_rows_with_an_id_have_one() -> None:
    assert row("POST", "/v1/chat/completions").object_id("/v1/chat/completions") is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/v1/chat",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "//evil.example/v1/models",
        "http://other/v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/V1/chat/completions",
        "/v1/./chat/completions",
        "/v1/videos/",
        "/v1/videos//content",
        "/v1/videos/..",
        "/v1/videos/../chat/completions",
        "/v1/videos/%2e%2E/chat/completions",
        "/v1/videos/x/%2e./y",
        "/v1/videos/x/",
        "/v1/responses/x/unknown",
        "/v1/responses/x/cancel/more",
        "/v1/models",
        "x/v1/videos/y",
    ],
)
def test_other_paths_are_not_found(path: str) -> None:
    """BUG-144, BUG-145: undecoded, never another host, never another row by dots."""
    for method in ("GET", "POST"):
        assert match(method, path) == NotFound()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", ("POST",)),
        ("OPTIONS", "/v1/chat/completions", ("POST",)),
        ("post", "/v1/chat/completions", ("POST",)),
        ("PUT", "/v1/videos", ("GET", "HEAD", "POST")),
        ("POST", "/v1/videos/x", ("DELETE", "GET", "HEAD")),
        ("DELETE", "/v1/videos/x/content", ("GET", "HEAD", "POST")),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    method: str, path: str, allow: tuple[str, ...]
) -> None:
    assert match(method, path) == MethodNotAllowed(allow)
    assert allow_for(path) == allow


def test_local_paths_join_the_answer() -> None:
    local = [LocalPath("/health", ("GET",)), LocalPath("/v1/models/{id...}", ("GET", "HEAD"))]
    assert allow_for("/health", local) == ("GET",)
    assert allow_for("/v1/models/org/name", local) == ("GET", "HEAD")
    assert allow_for("/v1/models", local) is None
    assert allow_for("/nothing", local) is None


def test_what_may_be_sent_again() -> None:
    chat, responses = row("POST", "/v1/chat/completions"), row("POST", "/v1/responses")
    assert chat.replayable() and chat.replayable(stored=False)
    assert not responses.replayable() and responses.replayable(stored=False)
    # No other backend has the object that an id names.
    by_id = [endpoint for endpoint in ENDPOINTS if endpoint.model is ModelRule.BY_ID]
    assert by_id and not any(endpoint.replayable(stored=False) for endpoint in by_id)
    assert not row("POST", "/v1/videos").replayable(stored=False)


def test_where_the_model_must_be_named() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.path.startswith(("/v1/images", "/completion", "/infill", "/tokenize")):
            assert endpoint.model is ModelRule.OPTIONAL
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/audio/transcriptions",
        "/v1/audio/speech",
    ):
        assert row("POST", path).model_required


def test_a_row_without_a_protocol_reads_no_body() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.protocol is None and endpoint.model is ModelRule.BY_ID:
            assert endpoint.body is BodyKind.NONE


def test_no_two_rows_claim_one_request() -> None:
    for one, other in itertools.combinations(ENDPOINTS, 2):
        if one.path == other.path:
            assert not set(one.methods) & set(other.methods)
