"""What is decided without asking anybody: lists, figures, pace, answers to probes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifeboat.core.health import ProbeResult
from lifeboat.core.vocabulary import Health, Kind
from lifeboat.fleet.engines import Load, Props, parse_metrics, parse_props, parse_slots
from lifeboat.fleet.inquiry import AskError, Reply
from lifeboat.fleet.listings import NoListingError, parse_listing
from lifeboat.fleet.pace import Pace
from lifeboat.fleet.probes import judge

# ---- lists -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}, {"id": "a"}]}, ("a", "b")),
        ({"models": [{"name": "x:latest"}]}, ("x:latest",)),
        ({"data": []}, ()),
        ({"data": [{"id": "a/b:c@d#e f%20+é漢"}]}, ("a/b:c@d#e f%20+é漢",)),
        ({"data": [{"id": 7}, {}, None, {"id": ""}, {"id": "a\nb"}, {"id": "c"}]}, ("c",)),
        ({"data": [{"id": "x" * 257}, {"id": "ok"}]}, ("ok",)),
    ],
)
def test_a_list_gives_its_usable_ids_once_and_in_order(
    answer: object, ids: tuple[str, ...]
) -> None:
    assert parse_listing(json.dumps(answer).encode()).ids == ids


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b"{}", b'{"data": {}}', b"[" * 100_000,
        b'{"data": [{"id": " a"}, null, {"name": 3}]}',
    ],
)  # fmt: skip
def test_what_is_no_list_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(NoListingError):
        parse_listing(body)


def test_the_largest_context_of_a_list_is_its_input_cap() -> None:
    body = b'{"data":[{"id":"a","max_model_len":4096},{"id":"b","max_model_len":8192},{"id":"c"}]}'
    assert parse_listing(body).max_input_tokens == 8192
    assert parse_listing(b'{"data":[{"id":"a","max_model_len":true}]}').max_input_tokens is None


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["data", "models", "id", "name", "total_slots"]), inner),
    max_leaves=20,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_answer_however_odd_breaks_a_reader(body: bytes) -> None:
    try:
        parse_listing(body)
    except NoListingError:
        pass
    parse_props(body)
    parse_slots(body)
    parse_metrics(body, Kind.VLLM)


# ---- figures ---------------------------------------------------------------------------------

VLLM_PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a{b}} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 50.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


def test_the_gauges_of_several_engines_are_summed_and_their_namesakes_left_out() -> None:
    assert parse_metrics(VLLM_PAGE, Kind.VLLM) == Load(running=5, waiting=1)


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (b"llamacpp:requests_processing 4\nllamacpp:requests_deferred 8\n", Load(4, 8)),
        (b"llamacpp:requests_processing 4\n", Load(4, None)),
        (b"xllamacpp:requests_processing 4\n", Load()),
        (b"llamacpp:requests_processing NaN\nllamacpp:requests_deferred -1\n", Load()),
        (b"llamacpp:requests_processing 1e\nllamacpp:requests_deferred 1e400\n", Load()),
        (b"", Load()),
    ],
)
def test_a_llama_cpp_page_tells_what_runs_and_what_is_deferred(page: bytes, load: Load) -> None:
    assert parse_metrics(page, Kind.GGUF) == load


def test_a_large_page_costs_little() -> None:
    line = b'other_metric{label="' + b"x" * 80 + b'"} 1.0\n'
    page = line * 40_000 + VLLM_PAGE
    before = time.process_time()
    assert parse_metrics(page, Kind.VLLM) == Load(5, 1)
    assert time.process_time() - before < 5.0


def test_a_page_of_one_endless_line_costs_little() -> None:
    page = b"vllm:num_requests_running{" + b"}" * 2_000_000
    before = time.process_time()
    assert parse_metrics(page, Kind.VLLM) == Load()
    assert time.process_time() - before < 10.0


def test_props_tell_slots_and_the_context_of_one_slot() -> None:
    body = b'{"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}'
    assert parse_props(body) == Props(4, 2048)
    assert parse_props(b'{"total_slots": 0, "default_generation_settings": []}') == Props()


@pytest.mark.parametrize(
    ("slots", "load"),
    [
        ([{"is_processing": True}, {"is_processing": False}], Load(1)),
        ([{"state": 1}, {"state": 0}], Load(1)),
        ([{"id": 0}], Load()),
        ({"error": "off"}, Load()),
    ],
)
def test_busy_slots_are_counted(slots: object, load: Load) -> None:
    assert parse_slots(json.dumps(slots).encode()) == load


# ---- answers to probes -----------------------------------------------------------------------

LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (Reply(200, None, b""), ProbeResult.OK),
        (Reply(200, "text/html", b"<html>"), ProbeResult.OK),  # BUG-178: kept out by its list
        (Reply(401, None, b""), ProbeResult.OK),  # BUG-114
        (Reply(404, None, b""), ProbeResult.OK),
        (Reply(429, None, b""), ProbeResult.OK),
        (Reply(503, "application/json", LOADING), ProbeResult.LOADING),
        (Reply(503, "application/json", b'{"status":"no slot available"}'), ProbeResult.OK),
        (Reply(529, None, b""), ProbeResult.OK),
        (Reply(503, None, b""), ProbeResult.FAILED),
        (Reply(500, None, b""), ProbeResult.FAILED),
        (AskError("no answer"), ProbeResult.FAILED),
        (AskError("refused", refused=True), ProbeResult.REFUSED),
    ],
)
def test_busy_is_not_down_and_only_a_refused_connection_is_proof(
    reply: Reply | AskError, result: ProbeResult
) -> None:
    assert judge(reply, Kind.GGUF).result is result


# ---- pace ------------------------------------------------------------------------------------


def _pauses(health: Health, *, wanted: bool, listed: bool = True) -> list[float]:
    pace = Pace(soonest_s=1.0)
    return [
        pace.pause_s(health, 5.0, n, wanted=wanted, listed=listed, chance=0.0) for n in range(1, 8)
    ]


def test_a_backend_that_is_down_is_asked_ever_more_rarely_unless_it_is_wanted() -> None:
    assert _pauses(Health.DOWN, wanted=False) == [1, 2, 4, 8, 16, 30, 30]
    assert _pauses(Health.DOWN, wanted=True) == [1] * 7


def test_one_that_answers_is_asked_at_the_interval_and_one_that_loads_every_second() -> None:
    assert _pauses(Health.UP, wanted=True) == [5] * 7
    assert _pauses(Health.LOADING, wanted=False) == [1] * 7


def test_one_whose_models_are_unknown_is_asked_sooner_than_the_interval() -> None:
    assert _pauses(Health.UP, wanted=False, listed=False) == [1, 2, 4, 5, 5, 5, 5]


@given(st.floats(0, 1, exclude_max=True), st.sampled_from(Health), st.integers(0, 10**6))
def test_jitter_only_shortens_a_pause_and_by_a_tenth_at_most(
    chance: float, health: Health, rounds: int
) -> None:
    pace = Pace()
    full = pace.pause_s(health, 5.0, rounds, wanted=False, listed=True, chance=0.0)
    jittered = pace.pause_s(health, 5.0, rounds, wanted=False, listed=True, chance=chance)
    assert full * 0.9 <= jittered <= full
