"""Probes, lists and engine readings over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from lifeboat.core.health import Probe, ProbeResult
from lifeboat.core.seat import Lease
from lifeboat.core.vocabulary import Ask, Capability, Kind, Outcome, Refusal, Verdict
from lifeboat.fleet import Pace
from tests.fleet.scripted import backend, house_of, serving, until

ASK = Ask("m", Capability.GENERATE)
LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
PROPS = {"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}


async def test_a_backend_lists_its_models_before_the_start_is_over() -> None:
    async with serving() as [server], house_of(backend("a", server)) as house:
        assert house.models("a") == {"m"}
        assert house.health("a") == "up"
        assert house.fleet.listing()[0].id == "m"


async def test_a_server_that_hangs_does_not_hold_up_the_start() -> None:
    async with serving(2) as [good, hung]:
        hung.hanging = {"/health", "/v1/models"}
        before = asyncio.get_running_loop().time()
        async with house_of(backend("a", good), backend("b", hung), probe_timeout_s=20.0) as house:
            assert asyncio.get_running_loop().time() - before < 8.0
            assert [entry.id for entry in house.fleet.listing()] == ["m"]  # BUG-117


async def test_a_server_that_is_not_there_is_down_at_once_and_back_within_a_pause() -> None:
    async with serving() as [server]:
        await server.down()
        async with house_of(backend("a", server, models=("m",))) as house:
            assert house.health("a") == "down"
            await server.up()
            await until(lambda: house.health("a") == "up")


PATIENT = Pace(soonest_s=0.05, longest_s=30.0, first_s=0.3)
"""Its pauses double without a bound that a test could see."""
GROWN_S = 2.1
"""By then they were 0.05, 0.1, .. 0.8 s, and the next is 1.6 s: the probe after that is due when
at least 2.8 s have passed, and later where the machine is slow."""
SOON_S = 0.65
"""Before that."""


async def test_a_backend_that_is_down_is_probed_often_while_somebody_asks_for_it() -> None:
    async with serving() as [server]:
        await server.down()
        async with house_of(backend("a", server, models=("m",)), pace=PATIENT) as house:
            await asyncio.sleep(GROWN_S)
            house.fleet.nudge("m")
            await asyncio.sleep(0.02)
            await server.up()
            house.fleet.nudge("m")
            await until(lambda: house.health("a") == "up", within_s=SOON_S)


async def test_one_that_nobody_wants_is_left_alone_for_longer_and_longer() -> None:
    async with serving() as [server]:
        await server.down()
        async with house_of(backend("a", server, models=("m",)), pace=PATIENT) as house:
            await asyncio.sleep(GROWN_S)
            await server.up()
            await asyncio.sleep(0.3)
            assert house.health("a") == "down"


async def test_parked_requests_count_as_asking() -> None:
    async with serving() as [server]:
        await server.down()
        async with house_of(
            backend("a", server, models=("m",)), hold_when_down=True, pace=PATIENT
        ) as house:
            waiting = asyncio.get_running_loop().create_task(house.door.enter(ASK))
            await asyncio.sleep(GROWN_S)
            await server.up()
            async with asyncio.timeout(SOON_S):
                lease = await waiting
            assert isinstance(lease, Lease)
            house.door.close(lease, Outcome(Verdict.ANSWERED, 200))


async def test_traffic_of_its_pools_counts_as_asking_though_others_serve_it() -> None:
    async with serving(2) as [one, two]:
        await one.down()
        backends = backend("a", one, models=("m",)), backend("b", two, models=("m",))
        async with house_of(*backends, pace=PATIENT) as house:
            for _ in range(round(GROWN_S / 0.05)):
                lease = await house.door.enter(ASK)
                assert isinstance(lease, Lease)
                house.door.reconfigure(lambda gate, now, lease=lease: gate.note_dispatch(lease))
                house.door.close(lease, Outcome(Verdict.ANSWERED, 200))
                await asyncio.sleep(0.05)
            await one.up()
            await until(lambda: house.health("a") == "up", within_s=SOON_S)


async def test_a_refusal_that_nobody_reports_is_noticed_within_a_beat() -> None:
    async with (
        serving() as [server],
        house_of(backend("a", server, models=("m",)), probe_interval_s=30.0) as house,
    ):
        await asyncio.sleep(0.1)
        lease = await house.door.enter(ASK)
        assert isinstance(lease, Lease)
        house.door.close(lease, Outcome(Verdict.REFUSED))
        await until(lambda: house.health("a") == "up", within_s=10.0)


async def test_a_refused_request_brings_the_probe_forward() -> None:
    async with (
        serving() as [server],
        house_of(backend("a", server, models=("m",)), probe_interval_s=30.0) as house,
    ):
        lease = await house.door.enter(ASK)
        assert isinstance(lease, Lease)
        house.door.close(lease, Outcome(Verdict.REFUSED))
        assert house.health("a") == "down"
        house.fleet.saw_refusal("a")
        await until(lambda: house.health("a") == "up", within_s=10.0)


async def test_a_model_that_loads_is_no_backend_yet_and_one_as_soon_as_it_is_ready() -> None:
    async with serving() as [server]:
        server.answers["/health"] = (503, LOADING)
        async with house_of(backend("a", server, Kind.GGUF, models=("m",))) as house:
            assert house.health("a") == "loading"
            server.answers["/health"] = (200, "")
            await until(lambda: house.health("a") == "up", within_s=3.0)


async def test_failed_probes_eject_one_of_two_but_never_the_last() -> None:
    async with serving(2) as [one, two]:
        backends = backend("a", one, models=("m",)), backend("b", two, models=("m",))
        async with house_of(*backends, probe_failures=2) as house:
            one.answers["/health"] = two.answers["/health"] = (500, "")
            await until(lambda: "down" in (house.health("a"), house.health("b")))
            await asyncio.sleep(0.6)
            assert sorted((house.health("a"), house.health("b"))) == ["down", "up"]  # BUG-174


async def test_probes_never_change_in_flight() -> None:
    async with serving() as [server], house_of(backend("a", server)) as house:
        lease = await house.door.enter(ASK)
        assert isinstance(lease, Lease)
        for status in (200, 500) * 4:
            server.answers["/health"] = (status, "")
            await asyncio.sleep(0.1)
            assert house.door.view().backends["a"].in_flight == 1
        house.door.close(lease, Outcome(Verdict.ANSWERED, 200))
        assert house.door.view().backends["a"].in_flight == 0


# ---- lists -----------------------------------------------------------------------------------


async def test_adapters_appear_and_vanish_within_one_refresh() -> None:  # BUG-109
    async with serving() as [server], house_of(backend("a", server)) as house:
        server.lists("m", {"id": "lora", "parent": "m"})
        await until(lambda: house.models("a") == {"m", "lora"})
        assert house.fleet.resolve("lora").model == "lora"
        server.lists("m")
        await until(lambda: house.models("a") == {"m"})


async def test_the_models_of_a_backend_that_is_down_are_remembered() -> None:
    async with serving() as [server], house_of(backend("a", server)) as house:
        await server.down()
        await until(lambda: house.health("a") == "down")
        assert house.models("a") == {"m"}
        assert house.fleet.listing()[0].backends == ("a",)
        refusal = await house.door.enter(ASK)
        assert isinstance(refusal, Refusal) and refusal.temporary


async def test_a_backend_that_comes_back_with_another_model_is_not_sent_the_old_one() -> None:
    async with (
        serving() as [server],
        house_of(backend("a", server), models_interval_s=60.0) as house,
    ):
        await server.down()
        await until(lambda: house.health("a") == "down")
        server.lists("other")
        await server.up()
        await until(lambda: house.health("a") == "up")
        assert house.models("a") == {"other"}


async def test_a_refused_key_is_a_warning_and_not_an_empty_list() -> None:  # BUG-114
    async with (
        serving() as [server],
        house_of(backend("a", server, Kind.OPENAI, api_key="k")) as house,
    ):
        assert server.headers["Authorization"] == "Bearer k"
        server.answers["/v1/models"] = (401, {"error": {"message": "no"}})
        await until(lambda: "a" in house.fleet.warnings())
        assert "401: give its key as api_key" in house.fleet.warnings()["a"][0]
        assert house.models("a") == {"m"}
        assert house.health("a") == "up"


async def test_a_list_that_cannot_be_read_keeps_a_backend_out_and_says_why() -> None:  # BUG-178
    async with serving() as [server]:
        server.answers["/health"] = (200, "<html>")
        server.answers["/v1/models"] = (200, "<html>")
        async with house_of(backend("a", server)) as house:
            assert house.models("a") is None
            assert "not JSON" in house.fleet.warnings()["a"][0]
            server.lists("m")
            await until(lambda: house.models("a") == {"m"})


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # BUG-208
    async with serving() as [server], house_of(backend("a", server)) as house:
        assert house.models("a") == {"m"}


# ---- engines ---------------------------------------------------------------------------------


async def test_the_slots_of_a_llama_cpp_server_become_its_limit_and_its_context_the_cap() -> None:
    async with serving() as [server]:
        server.answers["/props"] = (200, PROPS)
        server.answers["/slots"] = (200, [{"is_processing": True}, {"is_processing": False}])
        server.answers["/metrics"] = (501, {"error": {"message": "off"}})
        async with house_of(backend("a", server, Kind.GGUF, max_input_tokens="auto")) as house:
            await until(lambda: house.door.view().backends["a"].effective_limit == 4)
            view = house.door.view().backends["a"]
            assert view.limit_reason == "engine_slots"
            assert view.spec.max_input_tokens == 2048
            reading = house.fleet.engines()["a"]
            assert (reading.running, reading.waiting, reading.slots) == (1, None, 4)


async def test_a_page_that_is_off_is_asked_for_rarely() -> None:
    async with serving() as [server]:
        server.answers |= {"/props": (200, PROPS), "/metrics": (501, {})}
        async with house_of(backend("a", server, Kind.GGUF), models_interval_s=60.0):
            await until(lambda: server.asked.count("/health") > 4)
        assert server.asked.count("/metrics") <= 2
        assert server.asked.count("/slots") <= 2


async def test_until_its_slots_are_known_a_llama_cpp_server_has_the_default_and_a_warning() -> None:
    async with serving() as [server], house_of(backend("a", server, Kind.GGUF)) as house:
        assert house.door.view().backends["a"].limit_reason == "gguf_default"
        assert "slots are unknown" in house.fleet.warnings()["a"][0]


async def test_deferred_requests_of_a_llama_cpp_server_are_seen() -> None:
    async with serving() as [server]:
        page = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 3\n"
        server.answers |= {"/props": (200, PROPS), "/metrics": (200, page)}
        async with house_of(backend("a", server, Kind.GGUF)) as house:
            await until(lambda: "a" in house.fleet.engines())
            assert house.fleet.engines()["a"].waiting == 3


async def test_requests_of_others_are_shown_once_they_last() -> None:
    async with serving() as [server]:
        server.answers["/metrics"] = (200, "vllm:num_requests_running 5\n")
        async with house_of(backend("a", server)) as house:
            await until(lambda: "a" in house.fleet.warnings())
            assert "holds 5 requests, 0 of them" in house.fleet.warnings()["a"][0]
            server.answers["/metrics"] = (200, "vllm:num_requests_running 0\n")
            await until(lambda: "a" not in house.fleet.warnings())


async def test_a_reading_that_stops_is_kept_with_its_age() -> None:
    async with serving() as [server]:
        server.answers["/metrics"] = (200, "vllm:num_requests_running 2\n")
        async with house_of(backend("a", server)) as house:
            await until(lambda: "a" in house.fleet.engines())
            server.hanging.add("/metrics")
            await asyncio.sleep(0.2)
            read_at = house.fleet.engines()["a"].read_at
            await asyncio.sleep(0.3)
            assert house.fleet.engines()["a"].read_at == read_at
            assert house.fleet.engines()["a"].running == 2
            lease = await house.door.enter(ASK)
            assert isinstance(lease, Lease)
            house.door.close(lease, Outcome(Verdict.ANSWERED, 200))


async def test_what_an_engine_ran_is_not_told_any_more_once_its_server_is_down() -> None:
    async with serving() as [server]:
        server.answers["/props"] = (200, {"total_slots": 4})
        server.answers["/metrics"] = (
            200, "llamacpp:requests_processing 4\nllamacpp:requests_deferred 3\n"
        )  # fmt: skip
        gguf = backend("a", server, kind=Kind.GGUF, max_concurrency=4)
        async with house_of(gguf) as house:

            def told() -> tuple[int | None, ...]:
                reading = house.fleet.engines()["a"]
                return reading.running, reading.waiting, reading.slots

            await until(lambda: "a" in house.fleet.engines() and told() == (4, 3, 4))
            await until(
                lambda: any("7 requests" in one for one in house.fleet.warnings().get("a", ()))
            )
            read_at = house.fleet.engines()["a"].read_at
            await server.down()
            await until(lambda: house.health("a") == "down")
            await until(lambda: told() == (None, None, 4))
            assert house.fleet.engines()["a"].read_at == read_at, "its age goes on"
            assert "a" not in house.fleet.warnings(), "nobody is inside a server that is down"
            await server.up()
            await until(lambda: told() == (4, 3, 4))


async def test_an_engine_is_read_as_soon_as_its_server_is_back() -> None:
    async with serving() as [server]:
        server.answers["/metrics"] = (200, "vllm:num_requests_running 2\n")
        async with house_of(backend("a", server), probe_interval_s=60.0) as house:

            def running() -> int | None:
                return house.fleet.engines()["a"].running

            await until(lambda: "a" in house.fleet.engines() and running() == 2)
            server.answers["/health"] = (503, LOADING)
            refused = Probe(ProbeResult.REFUSED)
            house.door.reconfigure(lambda gate, now: gate.observe_probe("a", refused, now))
            await until(lambda: running() is None)
            server.answers["/health"] = (200, "")
            await until(lambda: running() == 2)


async def test_a_context_that_only_the_list_tells_is_the_auto_cap() -> None:
    async with serving() as [server]:
        server.lists({"id": "m", "max_model_len": 512})
        async with house_of(backend("a", server, Kind.OPENAI, max_input_tokens="auto")) as house:
            assert house.door.view().backends["a"].spec.max_input_tokens == 512


async def test_a_server_below_a_path_is_asked_below_it() -> None:  # BUG-202
    async with serving() as [server]:
        server.answers["/llm/v1/models"] = (200, {"data": [{"id": "p"}]})
        server.answers["/llm/health"] = (200, "")
        async with house_of(backend("a", server.url + "/llm/v1")) as house:
            assert house.models("a") == {"p"}
            assert house.fleet.members()["a"].url == server.url + "/llm"


async def test_fifty_backends_are_all_listed_though_first_answers_come_late() -> None:
    async with serving() as [server]:
        server.lists(*(f"m{n}" for n in range(50)))
        many = [backend(f"b{n}", server) for n in range(50)]
        rarely = {"probe_interval_s": 30.0, "models_interval_s": 30.0, "probe_timeout_s": 5.0}
        async with house_of(*many, **rarely) as house:
            await until(lambda: all(house.models(f"b{n}") for n in range(50)))
            assert len(house.fleet.listing()) == 50
