"""Tests of router/adapters/registry.py with a scripted store."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.fake_adapter_store import Store

from router.adapters import registry
from router.adapters.reference import Borrowed, Merged, Named
from router.adapters.registry import Adapters
from router.config import RouterConfig
from router.errors import (
    AdapterFailed,
    AdapterMissing,
    CannotStartNow,
    InvalidRequest,
    Overloaded,
    RequestError,
    TimedOut,
)
from router.request import Resource
from router.scheduler.plan import ModelFacts
from router.shards.handshake import Meeting
from router.shards.resource_loader import Resources, Told

FACTS = ModelFacts("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)


class Ranks:
    async def load(self, _: Any) -> str:
        return ""

    unload = load


class House:
    def __init__(self, **settings: Any) -> None:
        self.store = Store()
        self.resources = Resources(Ranks(), Told(lambda _: None, lambda *_: None, lambda _: None))
        self.adapters = Adapters(RouterConfig(**settings), self.store, self.resources)

    async def of(self, name: str, token: str = "", **more: Any) -> Borrowed:
        borrowed = await self.adapters.of(Named(name, token=token, **more))
        assert borrowed is not None
        return borrowed

    async def preload(self) -> None:
        await self.resources.met(Meeting(FACTS, 1, frozenset(), frozenset()))
        await self.adapters.preload(self.resources.keep)

    async def refused(self, kind: type[RequestError], name: str, **more: Any) -> str:
        with pytest.raises(kind) as error:
            await self.of(name, **more)
        return str(error.value)


def play(story: Callable[[House], Awaitable[Any]], **settings: Any) -> None:
    async def told() -> None:
        house = House(**settings)
        await story(house)
        await house.adapters.close()
        assert house.store.is_closed
    asyncio.run(told())


def test_a_name_stands_for_one_version_and_is_fetched_once() -> None:
    async def story(house: House) -> None:
        first, again = await house.of("a"), await house.of("a")
        assert first == again == Borrowed(Resource("adapter", 1), "d-a", "a", "hub")
        assert first.resource.takes == 40
        assert [question["name"] for question in house.store.asked("fetch")] == ["a"]
    play(story)


def test_a_version_that_is_nowhere_in_use_is_asked_for_again() -> None:
    """The store may have removed it to make room."""
    async def story(house: House) -> None:
        await house.of("a")
        await house.of("a")
        assert len(house.store.asked("fetch")) == 2
    play(story)


def test_fetching_anew_makes_another_version_and_who_has_the_old_one_keeps_it() -> None:
    async def story(house: House) -> None:
        old = await house.of("a")
        house.store.digests["a"] = "d-a2"
        assert await house.of("a") == old
        new = await house.adapters.fetch(Named("a"))
        assert (new.digest, (await house.of("a")).digest) == ("d-a2", "d-a2")
        assert new.resource != old.resource
        assert house.store.asked("fetch")[-1]["fresh"]
    play(story)


def test_what_somebody_has_is_pinned_while_others_are_fetched() -> None:
    async def story(house: House) -> None:
        kept = await house.of("a")
        await house.of("b")
        assert house.store.asked("pin")[-1]["digests"] == [kept.digest]
    play(story)


def test_many_who_ask_for_the_same_wait_for_one_fetch_that_outlives_who_asked_first() -> None:
    async def story(house: House) -> None:
        house.store.let_go.clear()
        first, *others = [asyncio.create_task(house.of("a")) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        house.store.let_go.set()
        assert len({borrowed.digest for borrowed in await asyncio.gather(*others)}) == 1
        assert len(house.store.asked("fetch")) == 1
    play(story)


def test_what_is_not_there_and_what_is_not_sound_are_told_apart() -> None:
    async def story(house: House) -> None:
        assert "there is no c" in await house.refused(AdapterMissing, "c")
        assert "it has no end" in await house.refused(AdapterFailed, "broken")
        house.store.digests["c"] = "d-c"
        assert (await house.of("c")).digest == "d-c"
    play(story)


def test_a_private_adapter_is_only_for_who_may_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        await house.refused(AdapterMissing, "secret")
        mine = await house.of("secret", "key")
        assert "you may not" in await house.refused(AdapterMissing, "secret", token="other")
        assert "you may not" in await house.refused(AdapterMissing, "secret")
        assert (await house.of("secret", "key")) == mine
        assert len(house.store.asked("allowed")) == 2
        later = registry.now() + registry.ACCESS_SECONDS + 1
        monkeypatch.setattr(registry, "now", lambda: later)
        await house.of("secret", "key")
        assert len(house.store.asked("allowed")) == 3
    play(story)


def test_what_whoever_runs_the_server_has_named_is_for_everybody() -> None:
    async def story(house: House) -> None:
        await house.preload()
        borrowed = await house.of("mine")
        assert (borrowed.name, borrowed.resource.stays) == ("secret", True)
        assert house.adapters.names == {"mine": Named("secret", "local"), "a": Named("a", "hub")}
        static = await house.adapters.of(None)
        assert static is not None
        assert static.digest == "d-a"
    play(story, preloaded_adapter_ids=("mine=secret",), preloaded_adapter_source="local", adapter_id="a")


@pytest.mark.parametrize(("name", "kind", "reason"), [
    ("broken", ValueError, "it has no end"), ("nobody", ValueError, "there is no nobody"),
    ("away", CannotStartNow, "the Hub does not answer")])
def test_an_adapter_that_should_stay_and_cannot_ends_the_start(name: str, kind: type[ValueError], reason: str) -> None:
    """CannotStartNow marks a cause that may be gone at the next start."""
    async def story(house: House) -> None:
        with pytest.raises(ValueError, match=f"the adapter {name} cannot be served: .*{reason}") as error:
            await house.preload()
        assert error.type is kind
    play(story, preloaded_adapter_ids=(name,))


@pytest.mark.parametrize("name", ["", "x" * 513, "a\0b", "a\nb"])
def test_what_is_no_name_is_not_asked_for(name: str) -> None:
    async def story(house: House) -> None:
        assert "`adapter_id` must be a name" in await house.refused(InvalidRequest, name)
        assert house.store.questions == []
    play(story)


def test_time_that_runs_out_is_told() -> None:
    async def story(house: House) -> None:
        house.store.let_go.clear()
        with pytest.raises(TimedOut):
            await house.adapters.of(Named("a"), registry.now() + 0.01)
    play(story)


def test_too_many_fetches_are_refused() -> None:
    async def story(house: House) -> None:
        house.store.let_go.clear()
        first = asyncio.create_task(house.of("a"))
        await asyncio.sleep(0)
        await house.refused(Overloaded, "b")
        house.store.let_go.set()
        await first
    play(story, max_concurrent_requests=1)


def test_a_name_that_is_forgotten_is_fetched_again() -> None:
    async def story(house: House) -> None:
        kept = await house.of("a")
        assert house.adapters.forget(Named("a"))
        assert not house.adapters.forget(Named("a"))
        assert await house.of("a") == kept
        assert len(house.store.asked("fetch")) == 2
    play(story)


def test_a_name_goes_on_standing_for_what_it_did_if_what_is_new_cannot_be_loaded() -> None:
    async def story(house: House) -> None:
        async def load(resource: Resource) -> str:
            return "" if resource.id == 1 else "it is broken"

        old = await house.adapters.fetch(Named("a"), load)
        house.store.digests["a"] = "d-a2"
        for name in ("a", "b"):
            with pytest.raises(AdapterFailed, match="it is broken"):
                await house.adapters.fetch(Named(name), load)
        assert [entry.version.digest for entry in house.adapters.known().values()] == [old.digest]
    play(story)


def test_an_adapter_may_be_called_otherwise_until_it_is_forgotten() -> None:
    async def story(house: House) -> None:
        await house.of("a")
        house.adapters.call("loom", Named("a"))
        assert (await house.of("loom")).name == "a"
        assert house.adapters.names == {"loom": Named("a", "hub")}
        assert house.adapters.forget(Named("loom"))
        assert house.adapters.names == {}
    play(story)


def test_what_whoever_runs_the_server_has_named_keeps_its_name() -> None:
    async def story(house: House) -> None:
        await house.preload()
        house.adapters.call("mine", Named("b"))
        house.adapters.forget(Named("mine"))
        assert house.adapters.names == {"mine": Named("a", "hub")}
        assert house.adapters.stays(Named("a", "hub"))
        assert not house.adapters.stays(Named("b", "hub"))
    play(story, preloaded_adapter_ids=("mine=a",))


def test_there_are_only_so_many_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(house: House) -> None:
        monkeypatch.setattr(registry, "MOST_KNOWN", 1)
        house.adapters.call("loom", Named("a"))
        house.adapters.call("loom", Named("b"))
        with pytest.raises(InvalidRequest, match="there are 1 names of adapters already"):
            house.adapters.call("other", Named("a"))
        with pytest.raises(InvalidRequest, match="`alias` must be a name"):
            house.adapters.call("", Named("a"))
    play(story)


def test_a_version_is_known_to_shards_as_long_as_anybody_has_it() -> None:
    async def story(house: House) -> None:
        kept = await house.of("a")
        version = house.adapters.known()[Named("a", "hub")].version
        assert house.adapters.resource(version) == kept.resource
        del kept
        gc.collect()
        assert house.adapters.resource(version) is None
    play(story)


def test_who_borrows_hears_whether_the_name_is_private() -> None:
    async def story(house: House) -> None:
        parts = (Named("a"), Named("secret", token="key"))
        for wanted, private in ((parts[0], False), (parts[1], True), (Merged(parts, (1.0, 1.0)), True)):
            borrowed = await house.adapters.of(wanted)
            assert borrowed is not None
            assert borrowed.is_private is private
    play(story)


def test_what_a_request_will_go_by_is_known_before_it_is_there() -> None:
    async def story(house: House) -> None:
        await house.preload()
        called = house.adapters.called
        assert called(Named("b")) == Named("b", "hub")
        assert called(Named("mine")) == Named("secret", "local")
        assert called(Merged((Named("b", "s3"), Named("mine")), (1.0, 1.0))) == Named("b,secret", "s3")
        assert called(Merged((), ())) is None
        assert called(None) == await house.of("a", source="hub")
        assert len(house.store.asked("fetch")) == 2
        with pytest.raises(InvalidRequest):
            called(Named("a\nb"))
    play(story, preloaded_adapter_ids=("mine=secret",), preloaded_adapter_source="local", adapter_id="a")


def test_who_was_let_in_keeps_what_is_forgotten_meanwhile() -> None:
    async def story(house: House) -> None:
        kept = await house.of("secret", "key")
        house.store.let_go.clear()
        house.store.is_asked.clear()
        asking = asyncio.create_task(house.of("secret", "other key"))
        await house.store.is_asked.wait()
        house.adapters.forget(Named("secret"))
        house.store.tokens.add("other key")
        house.store.let_go.set()
        assert await asking == kept
    play(story)


def test_several_are_merged_by_their_versions() -> None:
    async def story(house: House) -> None:
        wanted = Merged((Named("a"), Named("b")), (0.5, 2.0), "ties", 0.3)
        merged = await house.adapters.of(wanted)
        assert merged is not None
        assert (merged.digest, merged.name) == ("m-d-ad-b", "a,b")
        question = house.store.asked("merge")[0]
        assert (question["weights"], question["strategy"], question["density"]) == ([0.5, 2.0], "ties", 0.3)
        one = await house.adapters.of(Merged((Named("a"),), (0.5,)))
        assert one is not None
        assert one.digest == "d-a"
    play(story)


@pytest.mark.parametrize(("wanted", "reason"), [
    (Merged((), ()), "at least one adapter ID must be provided"),
    (Merged((Named("a"),) * 17, (1.0,) * 17), "at most 16 adapters can be merged, got 17"),
    (Merged((Named("a"),), ()), "number of adapter IDs must match number of adapter weights"),
    (Merged((Named("a"),), (1.0,), "sum"), "`merge_strategy` must be one of linear, ties, dare_linear, dare_ties"),
    (Merged((Named("a"),), (1.0,), sign="max"), "`majority_sign_method` must be one of total, frequency"),
    (Merged((Named("a"),), (1.0,), "ties", density=0.0), "`density` must be above 0 and at most 1, got 0.0"),
    (Merged((Named("a"),), (float("inf"),)), "a weight must be at most"),
    (Merged((Named("a"),), (float("nan"),)), "a weight must be at most"),
])
def test_what_cannot_be_merged_is_refused_before_anything_is_fetched(wanted: Merged, reason: str) -> None:
    async def story(house: House) -> None:
        with pytest.raises(InvalidRequest, match=reason):
            await house.adapters.of(wanted)
        assert house.store.questions == []
    play(story)
