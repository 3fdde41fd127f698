"""Tests of router/adapters/registry.py with a scripted store."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.servers.fake_adapter_store import FakeAdapterStore

from router.adapters import registry
from router.adapters.reference import AdapterReference, MergedAdapterReference, ResolvedAdapter
from router.adapters.registry import AdapterRegistry
from router.config import RouterConfig
from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    InvalidRequest,
    Overloaded,
    RequestError,
    RetryableStartupError,
    TimedOut,
)
from router.model_info import ModelInfo
from router.request import DEFAULT_TENANT, LoadableResource, Tenant
from router.shards.adapter_grammar_loader import AdapterGrammarLoader
from router.shards.handshake import HandshakeResult

FACTS = ModelInfo("loom", "cpu", "float32", vocabulary_size=512, max_positions=64, block_size=16, num_blocks=4)


class FakeShardRanks:
    async def load_or_unload(self, request: Any) -> str:
        return ""


class RegistrySetup:
    def __init__(self, **settings: Any) -> None:
        self.adapter_store = FakeAdapterStore()
        self.resource_loader = AdapterGrammarLoader(FakeShardRanks(), lambda *_: None, lambda _: None, lambda *_: None)
        self.registry = AdapterRegistry(RouterConfig(**settings), self.adapter_store, self.resource_loader)

    async def resolve(self, name: str, token: str = "", tenant: Tenant = DEFAULT_TENANT,
                      **reference_fields: Any) -> ResolvedAdapter:
        borrowed = await self.registry.resolve(AdapterReference(name, source_token=token, **reference_fields),
                                               tenant=tenant)
        assert borrowed is not None
        return borrowed

    async def preload_adapters(self) -> None:
        await self.resource_loader.restore_after_handshake(HandshakeResult(FACTS, 1, frozenset(), frozenset()))
        await self.registry.preload(self.resource_loader.load_permanently)

    async def expect_resolve_error(self, error_type: type[RequestError], name: str, **reference_fields: Any) -> str:
        with pytest.raises(error_type) as error:
            await self.resolve(name, **reference_fields)
        return str(error.value)


def run_scenario(scenario: Callable[[RegistrySetup], Awaitable[Any]], **settings: Any) -> None:
    async def main() -> None:
        setup = RegistrySetup(**settings)
        await scenario(setup)
        await setup.registry.close()
        assert setup.adapter_store.is_closed
    asyncio.run(main())


def test_adapter_name_is_pinned_to_one_version_and_fetched_once() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        first, again = await setup.resolve("a"), await setup.resolve("a")
        assert first == again == ResolvedAdapter(LoadableResource("adapter", 1), "d-a", "a", "hub")
        assert first.resource.max_bytes == 40
        assert [question["name"] for question in setup.adapter_store.requests_of("fetch")] == ["a"]
    run_scenario(scenario)


def test_unused_version_is_fetched_again() -> None:
    """The store may have removed the version to make room."""
    async def scenario(setup: RegistrySetup) -> None:
        await setup.resolve("a")
        await setup.resolve("a")
        assert len(setup.adapter_store.requests_of("fetch")) == 2
    run_scenario(scenario)


def test_fetching_latest_creates_a_version_while_holders_keep_the_old_one() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        old = await setup.resolve("a")
        setup.adapter_store.digest_by_name["a"] = "d-a2"
        assert await setup.resolve("a") == old
        new = await setup.registry.fetch_latest(AdapterReference("a"))
        assert (new.digest, (await setup.resolve("a")).digest) == ("d-a2", "d-a2")
        assert new.resource != old.resource
        assert setup.adapter_store.requests_of("fetch")[-1]["fresh"]
    run_scenario(scenario)


def test_versions_in_use_are_pinned_while_others_are_fetched() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        kept = await setup.resolve("a")
        await setup.resolve("b")
        assert setup.adapter_store.requests_of("pin")[-1]["digests"] == [kept.digest]
    run_scenario(scenario)


def test_concurrent_requests_share_one_fetch_that_survives_cancellation_of_the_first() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        setup.adapter_store.may_answer.clear()
        first, *others = [asyncio.create_task(setup.resolve("a")) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        setup.adapter_store.may_answer.set()
        assert len({borrowed.digest for borrowed in await asyncio.gather(*others)}) == 1
        assert len(setup.adapter_store.requests_of("fetch")) == 1
    run_scenario(scenario)


def test_missing_and_invalid_adapters_raise_different_errors() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        assert "there is no c" in await setup.expect_resolve_error(AdapterNotFound, "c")
        assert "it has no end" in await setup.expect_resolve_error(AdapterLoadFailed, "broken")
        setup.adapter_store.digest_by_name["c"] = "d-c"
        assert (await setup.resolve("c")).digest == "d-c"
    run_scenario(scenario)


def test_private_adapter_requires_a_token_with_access(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: RegistrySetup) -> None:
        await setup.expect_resolve_error(AdapterNotFound, "secret")
        adapter = await setup.resolve("secret", "key")
        assert "you may not" in await setup.expect_resolve_error(AdapterNotFound, "secret", token="other")
        assert "you may not" in await setup.expect_resolve_error(AdapterNotFound, "secret")
        assert (await setup.resolve("secret", "key")) == adapter
        assert len(setup.adapter_store.requests_of("allowed")) == 2
        later = registry.now() + registry.ACCESS_CACHE_SECONDS + 1
        monkeypatch.setattr(registry, "now", lambda: later)
        await setup.resolve("secret", "key")
        assert len(setup.adapter_store.requests_of("allowed")) == 3
    run_scenario(scenario)


def test_operator_named_adapters_are_available_to_everyone() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        await setup.preload_adapters()
        borrowed = await setup.resolve("mine")
        assert (borrowed.name, borrowed.resource.is_pinned) == ("secret", True)
        assert setup.registry.aliases == {"mine": AdapterReference("secret", "local"),
                                          "a": AdapterReference("a", "hub")}
        static = await setup.registry.resolve(None)
        assert static is not None
        assert static.digest == "d-a"
    run_scenario(scenario, preloaded_adapter_ids=("mine=secret",), preloaded_adapter_source="local", adapter_id="a")


@pytest.mark.parametrize(("name", "kind", "reason"), [
    ("broken", ValueError, "it has no end"), ("nobody", ValueError, "there is no nobody"),
    ("away", RetryableStartupError, "the Hub does not answer")])
def test_preloaded_adapter_that_cannot_load_aborts_startup(name: str, kind: type[ValueError], reason: str) -> None:
    """RetryableStartupError marks a cause that may be gone at the next start."""
    async def scenario(setup: RegistrySetup) -> None:
        with pytest.raises(ValueError, match=f"the adapter {name} cannot be served: .*{reason}") as error:
            await setup.preload_adapters()
        assert error.type is kind
    run_scenario(scenario, preloaded_adapter_ids=(name,))


@pytest.mark.parametrize("name", ["", "x" * 513, "a\0b", "a\nb"])
def test_invalid_adapter_names_are_rejected_without_fetching(name: str) -> None:
    async def scenario(setup: RegistrySetup) -> None:
        assert "`adapter_id` must be a name" in await setup.expect_resolve_error(InvalidRequest, name)
        assert setup.adapter_store.requests == []
    run_scenario(scenario)


def test_adapter_fetch_times_out_at_the_deadline() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        setup.adapter_store.may_answer.clear()
        with pytest.raises(TimedOut):
            await setup.registry.resolve(AdapterReference("a"), registry.now() + 0.01)
    run_scenario(scenario)


def test_too_many_concurrent_fetches_are_rejected() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        setup.adapter_store.may_answer.clear()
        first = asyncio.create_task(setup.resolve("a"))
        await asyncio.sleep(0)
        await setup.expect_resolve_error(Overloaded, "b")
        setup.adapter_store.may_answer.set()
        await first
    run_scenario(scenario, max_concurrent_requests=1)


def test_tenants_fetch_adapters_in_turns_and_none_keeps_another_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tenant's fetches could be as many as there may be of all, and another's waited behind them."""
    monkeypatch.setattr(registry, "MAX_CONCURRENT_FETCHES", 1)

    async def scenario(setup: RegistrySetup) -> None:
        setup.adapter_store.digest_by_name |= {name: name for name in ("a0", "a1", "a2")}
        setup.adapter_store.may_answer.clear()
        flood = [asyncio.create_task(setup.resolve(f"a{number}")) for number in range(3)]
        await asyncio.sleep(0)
        other = asyncio.create_task(setup.resolve("b", tenant=Tenant("other")))
        await asyncio.sleep(0)
        await setup.expect_resolve_error(Overloaded, "a")
        setup.adapter_store.may_answer.set()
        await asyncio.gather(*flood, other)
        assert [question["name"] for question in setup.adapter_store.requests_of("fetch")] == ["a0", "a1", "b", "a2"]
        assert setup.registry._fetch_turns.is_unused
    run_scenario(scenario, max_concurrent_requests=3)


def test_forgotten_name_is_fetched_again() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        kept = await setup.resolve("a")
        assert setup.registry.forget_version(AdapterReference("a"))
        assert not setup.registry.forget_version(AdapterReference("a"))
        assert await setup.resolve("a") == kept
        assert len(setup.adapter_store.requests_of("fetch")) == 2
    run_scenario(scenario)


def test_name_keeps_its_old_version_if_the_new_one_fails_to_load() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        async def load(resource: LoadableResource) -> str:
            return "" if resource.id == 1 else "it is broken"

        old = await setup.registry.fetch_latest(AdapterReference("a"), load)
        setup.adapter_store.digest_by_name["a"] = "d-a2"
        for name in ("a", "b"):
            with pytest.raises(AdapterLoadFailed, match="it is broken"):
                await setup.registry.fetch_latest(AdapterReference(name), load)
        assert [entry.version.digest for entry in setup.registry.get_entries().values()] == [old.digest]
    run_scenario(scenario)


def test_name_forgotten_while_its_new_version_fails_to_load_stays_forgotten() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        async def load(_: LoadableResource) -> str:
            setup.registry.forget_version(AdapterReference("a"))
            return "it was unloaded"

        await setup.resolve("a")
        setup.adapter_store.digest_by_name["a"] = "d-a2"
        with pytest.raises(AdapterLoadFailed, match="it was unloaded"):
            await setup.registry.fetch_latest(AdapterReference("a"), load)
        assert setup.registry.get_entries() == {}
    run_scenario(scenario)


def test_failed_load_leaves_a_version_that_another_request_fetched_meanwhile() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        async def reload_and_fail(_: LoadableResource) -> str:
            setup.adapter_store.digest_by_name["a"] = "d-a3"
            await setup.registry.fetch_latest(AdapterReference("a"))
            return "it was unloaded"

        await setup.resolve("a")
        setup.adapter_store.digest_by_name["a"] = "d-a2"
        with pytest.raises(AdapterLoadFailed, match="it was unloaded"):
            await setup.registry.fetch_latest(AdapterReference("a"), reload_and_fail)
        assert (await setup.resolve("a")).digest == "d-a3"
    run_scenario(scenario)


def test_alias_resolves_until_it_is_forgotten() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        await setup.resolve("a")
        setup.registry.add_alias("loom", AdapterReference("a"))
        assert (await setup.resolve("loom")).name == "a"
        assert setup.registry.aliases == {"loom": AdapterReference("a", "hub")}
        assert setup.registry.forget_version(AdapterReference("loom"))
        assert setup.registry.aliases == {}
    run_scenario(scenario)


def test_public_names_are_those_that_clients_may_see() -> None:
    """A private adapter is known by the alias that the operator gave it, and not at all without one."""
    async def scenario(setup: RegistrySetup) -> None:
        setup.registry.add_alias("loom", AdapterReference("a"))
        in_use = [await setup.resolve("a"), await setup.resolve("b"), await setup.resolve("secret", "key")]
        names = setup.registry.find_public_names()
        assert [names[adapter.resource] for adapter in in_use] == [["loom", "a"], ["b"], []]
        setup.registry.add_alias("hidden", AdapterReference("secret"))
        assert setup.registry.find_public_names()[in_use[2].resource] == ["hidden"]
    run_scenario(scenario)


def test_operator_defined_alias_cannot_be_changed() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        await setup.preload_adapters()
        setup.registry.add_alias("mine", AdapterReference("b"))
        setup.registry.forget_version(AdapterReference("mine"))
        assert setup.registry.aliases == {"mine": AdapterReference("a", "hub")}
        assert setup.registry.is_pinned(AdapterReference("a", "hub"))
        assert not setup.registry.is_pinned(AdapterReference("b", "hub"))
    run_scenario(scenario, preloaded_adapter_ids=("mine=a",))


def test_number_of_aliases_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: RegistrySetup) -> None:
        monkeypatch.setattr(registry, "MAX_KNOWN_ADAPTERS", 1)
        setup.registry.add_alias("loom", AdapterReference("a"))
        setup.registry.add_alias("loom", AdapterReference("b"))
        with pytest.raises(InvalidRequest, match="there are 1 names of adapters already"):
            setup.registry.add_alias("other", AdapterReference("a"))
        with pytest.raises(InvalidRequest, match="`alias` must be a name"):
            setup.registry.add_alias("", AdapterReference("a"))
    run_scenario(scenario)


def test_version_keeps_its_resource_while_anyone_holds_it() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        kept = await setup.resolve("a")
        version = setup.registry.get_entries()[AdapterReference("a", "hub")].version
        assert setup.registry.get_resource_in_use(version) == kept.resource
        del kept
        gc.collect()
        assert setup.registry.get_resource_in_use(version) is None
    run_scenario(scenario)


def test_resolved_adapter_reports_whether_it_is_private() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        parts = (AdapterReference("a"), AdapterReference("secret", source_token="key"))
        merged = MergedAdapterReference(parts, (1.0, 1.0))
        for reference, private in ((parts[0], False), (parts[1], True), (merged, True)):
            borrowed = await setup.registry.resolve(reference)
            assert borrowed is not None
            assert borrowed.is_private is private
    run_scenario(scenario)


def test_local_adapter_has_one_spelling_and_names_of_other_sources_stay() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        spellings = "a", "./a", "a/", ".//a"
        assert len({await setup.resolve(name) for name in spellings}) == 1
        assert [reference.name for reference in setup.registry.get_entries()] == ["a"]
        canonicalize = setup.registry.canonicalize
        assert canonicalize(AdapterReference("../a")).name == "../a"
        assert canonicalize(AdapterReference("s3://bucket/a/", "s3")).name == "s3://bucket/a/"
    run_scenario(scenario, adapter_source="local")


def test_adapter_name_is_known_before_the_adapter_is_fetched() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        await setup.preload_adapters()
        called = setup.registry.get_canonical_reference
        assert called(AdapterReference("b")) == AdapterReference("b", "hub")
        assert called(AdapterReference("mine")) == AdapterReference("secret", "local")
        assert called(MergedAdapterReference((AdapterReference("b", "s3"), AdapterReference("mine")),
                                             (1.0, 1.0))) == AdapterReference("b,secret", "s3")
        assert called(MergedAdapterReference((), ())) is None
        assert called(None) == await setup.resolve("a", source="hub")
        assert len(setup.adapter_store.requests_of("fetch")) == 2
        with pytest.raises(InvalidRequest):
            called(AdapterReference("a\nb"))
    run_scenario(scenario, preloaded_adapter_ids=("mine=secret",), preloaded_adapter_source="local", adapter_id="a")


def test_request_waiting_for_access_keeps_an_adapter_forgotten_meanwhile() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        kept = await setup.resolve("secret", "key")
        setup.adapter_store.may_answer.clear()
        setup.adapter_store.request_received.clear()
        resolve_task = asyncio.create_task(setup.resolve("secret", "other key"))
        await setup.adapter_store.request_received.wait()
        setup.registry.forget_version(AdapterReference("secret"))
        setup.adapter_store.allowed_tokens.add("other key")
        setup.adapter_store.may_answer.set()
        assert await resolve_task == kept
    run_scenario(scenario)


def test_several_adapters_are_merged_by_version_digest() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        reference = MergedAdapterReference((AdapterReference("a"), AdapterReference("b")), (0.5, 2.0), "ties", 0.3)
        merged = await setup.registry.resolve(reference)
        assert merged is not None
        assert (merged.digest, merged.name) == ("m-d-ad-b", "a,b")
        request = setup.adapter_store.requests_of("merge")[0]
        assert (request["weights"], request["strategy"], request["density"]) == ([0.5, 2.0], "ties", 0.3)
        single = await setup.registry.resolve(MergedAdapterReference((AdapterReference("a"),), (0.5,)))
        assert single is not None
        assert single.digest == "d-a"
    run_scenario(scenario)


@pytest.mark.parametrize(("reference", "reason"), [
    (MergedAdapterReference((), ()), "at least one adapter ID must be provided"),
    (MergedAdapterReference((AdapterReference("a"),) * 17, (1.0,) * 17), "at most 16 adapters can be merged, got 17"),
    (MergedAdapterReference((AdapterReference("a"),), ()),
     "number of adapter IDs must match number of adapter weights"),
    (MergedAdapterReference((AdapterReference("a"),), (1.0,), "sum"),
     "`merge_strategy` must be one of linear, ties, dare_linear, dare_ties"),
    (MergedAdapterReference((AdapterReference("a"),), (1.0,), majority_sign_method="max"),
     "`majority_sign_method` must be one of total, frequency"),
    (MergedAdapterReference((AdapterReference("a"),), (1.0,), "ties", density=0.0),
     "`density` must be above 0 and at most 1, got 0.0"),
    (MergedAdapterReference((AdapterReference("a"),), (float("inf"),)), "a weight must be at most"),
    (MergedAdapterReference((AdapterReference("a"),), (float("nan"),)), "a weight must be at most"),
])
def test_invalid_merge_is_rejected_before_anything_is_fetched(reference: MergedAdapterReference, reason: str) -> None:
    async def scenario(setup: RegistrySetup) -> None:
        with pytest.raises(InvalidRequest, match=reason):
            await setup.registry.resolve(reference)
        assert setup.adapter_store.requests == []
    run_scenario(scenario)


def test_names_of_local_adapters_are_asked_of_the_store_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(setup: RegistrySetup) -> None:
        for _ in range(3):
            assert await setup.registry.list_local_names() == ["a", "b", "secret"]
        assert len(setup.adapter_store.requests_of("names")) == 1
        del setup.adapter_store.digest_by_name["b"]
        monkeypatch.setattr(registry, "LOCAL_NAMES_SECONDS", 0.0)
        setup.registry._local_names_until = 0.0
        assert await setup.registry.list_local_names() == ["a", "secret"]
    run_scenario(scenario, adapter_source="local")


def test_no_names_are_listed_of_another_source() -> None:
    async def scenario(setup: RegistrySetup) -> None:
        assert await setup.registry.list_local_names() == []
        assert setup.adapter_store.requests == []
    run_scenario(scenario, adapter_source="hub")
