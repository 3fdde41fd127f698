"""Tests of requests with adapters over HTTP, on simulated shards whose text depends on the adapter."""

import asyncio
import gc

import pytest
from support.servers.expected_streams import compute_expected_output, make_text_request
from support.servers.fake_adapter_store import FakeAdapterStore
from support.servers.in_process_server import play_scenario

from router.adapters.reference import AdapterReference
from router.request import LoadableResource

POISON_CHARACTER = "\N{LATIN SMALL LETTER U WITH DIAERESIS}"  # a letter that no other prompt holds
LONG_PROMPT = "a prompt that fills some blocks of the cache, so that they can be found again"


def expected_text(weft, resource_id, prompt="a loom", max_new_tokens=12):
    request = make_text_request(prompt, max_new_tokens,
                                adapter=resource_id and LoadableResource("adapter", resource_id))
    return compute_expected_output(request, weft.model)[1]


async def generate_text(weft, adapter_name, prompt="a loom", max_new_tokens=12):
    answer = await weft.generate(prompt, max_new_tokens, adapter_id=adapter_name)
    assert answer.status == 200, await answer.text()
    return (await answer.json())["generated_text"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_request_uses_its_own_adapter_or_none(tmp_path, ranks):
    async def scenario(weft):
        names = [f"a{number}" for number in range(1, 9)]
        one_by_one = [await generate_text(weft, name) for name in names]
        assert one_by_one == [expected_text(weft, number) for number in range(1, 9)]
        answers = await asyncio.gather(*(generate_text(weft, name) for name in (*names, None, *names)))
        assert answers == [*one_by_one, expected_text(weft, None), *one_by_one]
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, ranks=ranks,
                  store=FakeAdapterStore(*(f"a{number}" for number in range(1, 9))))


def test_adapters_take_turns_when_there_are_fewer_slots_than_adapters(tmp_path):
    async def scenario(weft):
        names = [f"a{number}" for number in range(1, 7)]
        assert [await generate_text(weft, name)
                for name in names] == [expected_text(weft, number) for number in range(1, 7)]
        answers = await asyncio.gather(*(generate_text(weft, name, max_new_tokens=30) for name in 4 * names))
        assert len(set(answers)) == 6
        assert len(weft.ranks[0].worker.shard_state.loaded_ids[1]) <= 2
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, max_active_adapters=2, adapter_cycle_time_s=0.01,
                  store=FakeAdapterStore(*(f"a{number}" for number in range(1, 7))))


def test_missing_adapter_fails_only_its_requests_and_is_looked_up_again(tmp_path):
    store = FakeAdapterStore("a")

    async def scenario(weft):
        running = asyncio.create_task(generate_text(weft, "a", max_new_tokens=200))
        for _ in range(1000):
            answer = await weft.generate("a loom", adapter_id="nobody")
            assert answer.status == 424
        body = await answer.json()
        assert body["error_type"] == "generation"
        assert "there is no nobody" in body["error"]
        store.digest_by_name["nobody"] = "d-nobody"
        assert (await weft.generate("a loom", adapter_id="nobody")).status == 200
        assert await running == expected_text(weft, 1, max_new_tokens=200)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, store=store)


def test_adapter_that_fails_to_load_occupies_no_slot(tmp_path):
    async def scenario(weft):
        for _ in range(3):
            answer = await weft.generate("a loom", adapter_id="a")
            assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert weft.scheduler.resource_cache._cached == {}
        text = await generate_text(weft, "b")
        [resource] = weft.scheduler.resource_cache._cached
        assert text == expected_text(weft, resource.id)  # adapter a may have used several ids
    play_scenario(scenario, tmp_path, http=True, faults="refuse@load:1;refuse@load:2;refuse@load:3",
                  max_active_adapters=1, store=FakeAdapterStore("a", "b"))


def test_disconnect_while_adapter_is_fetched_or_loaded_leaves_no_state(tmp_path):
    store = FakeAdapterStore("a", "b")

    async def scenario(weft):
        store.may_answer.clear()
        fetching = asyncio.create_task(weft.generate("a loom", adapter_id="a"))
        await store.request_received.wait()
        fetching.cancel()
        await asyncio.wait([fetching])
        store.may_answer.set()
        assert await generate_text(weft, "a") == expected_text(weft, 1)
        submitted, cancelled = weft.watch_scheduler_calls("submit"), weft.watch_scheduler_calls("cancel")
        waiting = asyncio.create_task(weft.generate("a loom", 100, adapter_id="b"))
        await submitted.get()
        waiting.cancel()
        await cancelled.get()
        await weft.check_idle()
        assert weft.scheduler.resource_cache._num_users == {}
        assert weft.validator.adapter_registry._fetch_tasks == {}
    play_scenario(scenario, tmp_path, http=True, store=store)


@pytest.mark.parametrize("steps", [None, 0, 3], ids=["waits for a place", "in its prompt", "between two tokens"])
def test_disconnected_request_releases_its_adapter(tmp_path, steps):
    """The server has one adapter slot and admits two requests."""
    async def scenario(weft):
        submitted, cancelled = weft.watch_scheduler_calls("submit"), weft.watch_scheduler_calls("cancel")
        others = [asyncio.create_task(generate_text(weft, "b", max_new_tokens=40))] if steps is None else []
        if others:
            await weft.gate.wait_for_step()
            await submitted.get()
        leaver = asyncio.create_task(weft.generate("a loom", 1000, adapter_id="a"))
        await submitted.get()
        if steps is not None:
            await weft.gate.wait_for_step()
            weft.gate.release_steps(steps)
            await weft.shards.wait_for_num_steps(steps + 1)
        leaver.cancel()
        await cancelled.get()
        weft.gate.release_all()
        assert await asyncio.gather(*others) == [expected_text(weft, 1, max_new_tokens=40)] * len(others)
        await weft.check_idle()
        assert weft.scheduler.resource_cache._num_users == {}
        assert len(set(await asyncio.gather(generate_text(weft, "b"), generate_text(weft, "c")))) == 2
        weft.adapter_store.requests.clear()
        gc.collect()
        assert (await weft.generate("a loom", adapter_id="nobody")).status == 424
        [pinned] = weft.adapter_store.requests_of("pin")
        assert "d-a" not in pinned["digests"]
        assert len(weft.ranks[0].worker.shard_state.loaded_ids[1]) == 1
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_active_adapters=1, max_concurrent_requests=2,
                  adapter_cycle_time_s=0.01, store=FakeAdapterStore("a", "b", "c"))


def test_request_keeps_its_adapter_when_shards_are_replaced(tmp_path):
    async def scenario(weft):
        assert await generate_text(weft, "a", max_new_tokens=40) == expected_text(weft, 1, max_new_tokens=40)
        assert weft.num_replacements == 1
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True, faults="die@decode:9", store=FakeAdapterStore("a"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_failing_request_does_not_fail_others_with_the_same_adapter(tmp_path, ranks):
    async def scenario(weft):
        poisonous, *others = await asyncio.gather(
            weft.generate(f"a {POISON_CHARACTER}", 20, adapter_id="a"),
            *(generate_text(weft, name, f"loom {number}", 20) for number in range(3) for name in ("a", "b", None)))
        body = await poisonous.json()
        assert (poisonous.status, body["error_type"]) == (424, "generation")
        number = {"a": 1, "b": 2, None: None}
        assert others == [expected_text(weft, number[name], f"loom {place}", 20)
                          for place in range(3) for name in ("a", "b", None)]
        await weft.check_idle()
        assert await generate_text(weft, "a") == expected_text(weft, 1)
        assert (await weft.http_session.get("/health")).status == 200
    play_scenario(scenario, tmp_path, http=True, ranks=ranks, store=FakeAdapterStore("a", "b"),
                  faults=(f"poison@{POISON_CHARACTER.encode()[0]}",) * ranks)


def test_prefix_cache_is_separate_per_adapter(tmp_path):
    async def get_cached_token_count(weft, adapter_name):
        answer = await weft.generate(LONG_PROMPT, 2, adapter_id=adapter_name)
        return int(answer.headers["x-cached-tokens"])

    async def scenario(weft):
        assert [await get_cached_token_count(weft, name) for name in ("a", "b", None)] == [0, 0, 0]
        assert [await get_cached_token_count(weft, name) > 0 for name in ("a", "b", None)] == [True] * 3
        weft.adapter_store.digest_by_name["a"] = "another version"
        await weft.validator.adapter_registry.fetch_latest(AdapterReference("a"))
        assert await get_cached_token_count(weft, "a") == 0
    play_scenario(scenario, tmp_path, http=True, store=FakeAdapterStore("a", "b"))


def test_static_adapter_is_used_by_requests_without_adapter(tmp_path):
    async def scenario(weft):
        await weft.validator.adapter_registry.preload(weft.engine.adapter_grammar_controller.loader.load_permanently)
        assert await generate_text(weft, None) == await generate_text(weft, "a") == expected_text(weft, 1)
        await weft.replace_ranks()
        assert await generate_text(weft, None) == expected_text(weft, 1)
    play_scenario(scenario, tmp_path, http=True, adapter_id="a", store=FakeAdapterStore("a"))
