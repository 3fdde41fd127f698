"""Tests of requests with adapters over HTTP, on simulated shards whose text depends on the adapter."""

import asyncio
import gc

import pytest
from support.expected_streams import ask, expected
from support.fake_adapter_store import Store
from support.in_process_server import play

from router.adapters.reference import Named
from router.request import Resource

POISON = "\N{LATIN SMALL LETTER U WITH DIAERESIS}"  # a letter that no other prompt holds
LONG = "a prompt that fills some blocks of the cache, so that they can be found again"


def text_by(weft, adapter, prompt="a loom", length=12):
    request = ask(prompt, length, adapter=adapter and Resource("adapter", adapter))
    return expected(request, weft.model)[1]


async def said(weft, name, prompt="a loom", length=12):
    answer = await weft.generate(prompt, length, adapter_id=name)
    assert answer.status == 200, await answer.text()
    return (await answer.json())["generated_text"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_goes_by_its_own_and_who_names_none_by_none(tmp_path, ranks):
    async def story(weft):
        names = [f"a{number}" for number in range(1, 9)]
        one_by_one = [await said(weft, name) for name in names]
        assert one_by_one == [text_by(weft, number) for number in range(1, 9)]
        answers = await asyncio.gather(*(said(weft, name) for name in (*names, None, *names)))
        assert answers == [*one_by_one, text_by(weft, None), *one_by_one]
        await weft.check_idle()
    play(story, tmp_path, http=True, ranks=ranks, store=Store(*(f"a{number}" for number in range(1, 9))))


def test_with_fewer_places_than_adapters_everybody_has_its_turn(tmp_path):
    async def story(weft):
        names = [f"a{number}" for number in range(1, 7)]
        assert [await said(weft, name) for name in names] == [text_by(weft, number) for number in range(1, 7)]
        answers = await asyncio.gather(*(said(weft, name, length=30) for name in 4 * names))
        assert len(set(answers)) == 6
        assert len(weft.ranks[0].worker.ledger.loaded[1]) <= 2
        await weft.check_idle()
    play(story, tmp_path, http=True, max_active_adapters=2, adapter_cycle_time_s=0.01,
         store=Store(*(f"a{number}" for number in range(1, 7))))


def test_an_adapter_that_is_not_there_fails_its_own_requests_and_is_looked_for_again(tmp_path):
    store = Store("a")

    async def story(weft):
        running = asyncio.create_task(said(weft, "a", length=200))
        for _ in range(1000):
            answer = await weft.generate("a loom", adapter_id="nobody")
            assert answer.status == 424
        told = await answer.json()
        assert told["error_type"] == "generation"
        assert "there is no nobody" in told["error"]
        store.digests["nobody"] = "d-nobody"
        assert (await weft.generate("a loom", adapter_id="nobody")).status == 200
        assert await running == text_by(weft, 1, length=200)
        await weft.check_idle()
    play(story, tmp_path, http=True, store=store)


def test_an_adapter_that_no_shard_can_load_takes_no_room(tmp_path):
    async def story(weft):
        for _ in range(3):
            answer = await weft.generate("a loom", adapter_id="a")
            assert (answer.status, (await answer.json())["error_type"]) == (424, "generation")
        assert weft.core._residents._residents == {}
        told = await said(weft, "b")
        [resource] = weft.core._residents._residents
        assert told == text_by(weft, resource.id)  # adapter a may have used several ids
    play(story, tmp_path, http=True, faults="refuse@load:1;refuse@load:2;refuse@load:3", max_active_adapters=1,
         store=Store("a", "b"))


def test_who_leaves_while_its_adapter_is_fetched_or_loaded_leaves_nothing(tmp_path):
    store = Store("a", "b")

    async def story(weft):
        store.let_go.clear()
        fetching = asyncio.create_task(weft.generate("a loom", adapter_id="a"))
        await store.is_asked.wait()
        fetching.cancel()
        await asyncio.wait([fetching])
        store.let_go.set()
        assert await said(weft, "a") == text_by(weft, 1)
        entered, left = weft.watch("submit"), weft.watch("cancel")
        waiting = asyncio.create_task(weft.generate("a loom", 100, adapter_id="b"))
        await entered.get()
        waiting.cancel()
        await left.get()
        await weft.check_idle()
        assert weft.core._residents._users == {}
        assert weft.validator.adapters._fetching == {}
    play(story, tmp_path, http=True, store=store)


@pytest.mark.parametrize("steps", [None, 0, 3], ids=["waits for a place", "in its prompt", "between two tokens"])
def test_who_leaves_gives_back_what_it_had_of_its_adapter(tmp_path, steps):
    """The server has one adapter slot and admits two requests."""
    async def story(weft):
        entered, left = weft.watch("submit"), weft.watch("cancel")
        others = [asyncio.create_task(said(weft, "b", length=40))] if steps is None else []
        if others:
            await weft.gate.arrival()
            await entered.get()
        leaver = asyncio.create_task(weft.generate("a loom", 1000, adapter_id="a"))
        await entered.get()
        if steps is not None:
            await weft.gate.arrival()
            weft.gate.let(steps)
            await weft.shards.reach(steps + 1)
        leaver.cancel()
        await left.get()
        weft.gate.open()
        assert await asyncio.gather(*others) == [text_by(weft, 1, length=40)] * len(others)
        await weft.check_idle()
        assert weft.core._residents._users == {}
        assert len(set(await asyncio.gather(said(weft, "b"), said(weft, "c")))) == 2
        weft.store.questions.clear()
        gc.collect()
        assert (await weft.generate("a loom", adapter_id="nobody")).status == 424
        [pinned] = weft.store.asked("pin")
        assert "d-a" not in pinned["digests"]
        assert len(weft.ranks[0].worker.ledger.loaded[1]) == 1
        await weft.check_idle()
    play(story, tmp_path, http=True, gated=True, max_active_adapters=1, max_concurrent_requests=2,
         adapter_cycle_time_s=0.01, store=Store("a", "b", "c"))


def test_a_request_goes_on_by_its_adapter_when_the_shards_die(tmp_path):
    async def story(weft):
        assert await said(weft, "a", length=40) == text_by(weft, 1, length=40)
        assert weft.num_replaced == 1
        await weft.check_idle()
    play(story, tmp_path, http=True, faults="die@decode:9", store=Store("a"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_whose_steps_fail_takes_nobody_with_it_who_goes_by_the_same_adapter(tmp_path, ranks):
    async def story(weft):
        poisonous, *others = await asyncio.gather(
            weft.generate(f"a {POISON}", 20, adapter_id="a"),
            *(said(weft, name, f"loom {number}", 20) for number in range(3) for name in ("a", "b", None)))
        told = await poisonous.json()
        assert (poisonous.status, told["error_type"]) == (424, "generation")
        number = {"a": 1, "b": 2, None: None}
        assert others == [text_by(weft, number[name], f"loom {place}", 20)
                          for place in range(3) for name in ("a", "b", None)]
        await weft.check_idle()
        assert await said(weft, "a") == text_by(weft, 1)
        assert (await weft.http.get("/health")).status == 200
    play(story, tmp_path, http=True, ranks=ranks, store=Store("a", "b"),
         faults=(f"poison@{POISON.encode()[0]}",) * ranks)


def test_what_is_cached_of_a_prompt_is_for_one_adapter(tmp_path):
    async def cached(weft, name):
        answer = await weft.generate(LONG, 2, adapter_id=name)
        return int(answer.headers["x-cached-tokens"])

    async def story(weft):
        assert [await cached(weft, name) for name in ("a", "b", None)] == [0, 0, 0]
        assert [await cached(weft, name) > 0 for name in ("a", "b", None)] == [True] * 3
        weft.store.digests["a"] = "another version"
        await weft.validator.adapters.fetch(Named("a"))
        assert await cached(weft, "a") == 0
    play(story, tmp_path, http=True, store=Store("a", "b"))


def test_the_static_adapter_is_for_those_who_name_none(tmp_path):
    async def story(weft):
        await weft.validator.adapters.preload(weft.engine.supply.resources.keep)
        assert await said(weft, None) == await said(weft, "a") == text_by(weft, 1)
        await weft.replace()
        assert await said(weft, None) == text_by(weft, 1)
    play(story, tmp_path, http=True, adapter_id="a", store=Store("a"))
