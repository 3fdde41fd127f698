"""The store of a group, with clients as ranks use them, in threads."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from support.host_credentials import make_self_signed
from support.host_groups import FACTS, make_group
from torch.distributed import PrefixStore

from benchmarks.harness.processes import find_free_port
from launcher.console_output import ConsoleOutput
from launcher.hosts.coordinator import HostCoordinator
from launcher.hosts.rendezvous_store import MAX_VALUE_BYTES, RendezvousStore
from shard.errors import PeerLost
from shard.parallel.group import GlooGroup, RankGroup, Rendezvous
from shard.parallel.rendezvous_client import RendezvousClient
from shard.tls_credentials import ShardTlsCredentials, load_credentials

SHORT, LONG = timedelta(seconds=0.1), timedelta(seconds=20)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ShardTlsCredentials:
    return load_credentials(make_self_signed(tmp_path_factory.mktemp("credentials")))


def run_ranks(credentials: ShardTlsCredentials, *ranks: Callable[[str], object],
              ends_store: bool = False) -> list[object]:
    """Run each rank in a thread with the meeting point `HOST:PORT/run-1`; return what they return. With `ends_store`
    the start ends as soon as a rank waits for a value."""
    async def run() -> list[object]:
        group = make_group(credentials, find_free_port())
        coordinator = HostCoordinator(group, FACTS, get_address_files=lambda _: [], model_label="",
                                      output=ConsoleOutput())
        coordinator._server = await coordinator._listen()
        coordinator._store = store = RendezvousStore("run-1")
        if ends_store:
            wait_for = store._wait_for

            async def wait_and_end(keys: list[str]) -> None:
                asyncio.get_running_loop().call_soon(store.close)
                await wait_for(keys)
            store._wait_for = wait_and_end  # type: ignore[assignment,method-assign]
        try:
            with ThreadPoolExecutor(len(ranks)) as pool:
                return await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(
                    pool, rank, f"127.0.0.1:{group.node.master_port}/run-1") for rank in ranks))
        finally:
            await coordinator.close()
    return asyncio.run(run())


@contextmanager
def open_store(meeting_point: str, credentials: ShardTlsCredentials,
               timeout: timedelta = LONG) -> Iterator[RendezvousClient]:
    store = RendezvousClient(meeting_point, credentials, timeout)
    try:
        yield store
    finally:
        store.close()


def test_values_are_bytes_that_every_rank_gets(credentials: ShardTlsCredentials) -> None:
    def write(meeting_point: str) -> None:
        with open_store(meeting_point, credentials) as store:
            store.set("a", b"\x00\xff\n")
            store.set("b", "text")

    def read(meeting_point: str) -> tuple[object, ...]:
        with open_store(meeting_point, credentials) as store:
            store.wait(["a", "b"])
            return store.get("a"), store.get("b"), store.check(["a"]), store.check(["a", "c"])
    assert run_ranks(credentials, read, write)[0] == (b"\x00\xff\n", b"text", True, False)


def test_counters_add_up(credentials: ShardTlsCredentials) -> None:
    def count(meeting_point: str) -> list[int]:
        with open_store(meeting_point, credentials) as store:
            return [store.add("n", 1) for _ in range(5)]
    first, second = run_ranks(credentials, count, count)
    assert sorted([*first, *second]) == list(range(1, 11))


def test_torch_uses_it_as_any_store(credentials: ShardTlsCredentials) -> None:
    """torch wraps stores, and calls those in Python from C++: methods that it does not find there are errors."""
    def use(meeting_point: str) -> None:
        with open_store(meeting_point, credentials) as store:
            wrapped = PrefixStore("of", store)
            wrapped.set("a", b"1")
            wrapped.wait(["a"], SHORT)
            assert wrapped.get("a") == wrapped.clone().get("a") == b"1"
            assert (wrapped.add("n", 2), wrapped.add("n", 3), wrapped.num_keys()) == (2, 5, 2)
            assert (wrapped.delete_key("a"), wrapped.delete_key("a"), wrapped.check(["a"])) == (True, False, False)
            wrapped.multi_set(["b", "c"], [b"2", b"3"])
            assert wrapped.multi_get(["b", "c"]) == [b"2", b"3"]
    run_ranks(credentials, use)


def test_rank_that_does_not_come_is_an_error(credentials: ShardTlsCredentials) -> None:
    def wait(meeting_point: str) -> None:
        with (open_store(meeting_point, credentials, SHORT) as store,
              pytest.raises(PeerLost, match="did not come in time")):
            store.get("never")
    run_ranks(credentials, wait)


def test_rank_that_waits_when_the_start_ends_gets_an_error(credentials: ShardTlsCredentials) -> None:
    def wait(meeting_point: str) -> None:
        with (open_store(meeting_point, credentials) as store,
              pytest.raises(PeerLost, match="the group of hosts is gone")):
            store.get("never")
    run_ranks(credentials, wait, ends_store=True)


def test_store_of_another_start_is_gone(credentials: ShardTlsCredentials) -> None:
    def call(meeting_point: str) -> None:
        with (open_store(meeting_point.replace("run-1", "run-0"), credentials) as store,
              pytest.raises(PeerLost, match="the group of hosts is gone")):
            store.check(["a"])
    run_ranks(credentials, call)


def test_rank_without_the_secret_gets_no_value(credentials: ShardTlsCredentials) -> None:
    def call(meeting_point: str) -> None:
        with open_store(meeting_point, credentials) as store:
            store.set("a", b"1")
        with (open_store(meeting_point, replace(credentials, secret="another-secret-of-sixteen")) as store,
              pytest.raises(PeerLost, match="refused this rank: it has another secret")):
            store.get("a")
    run_ranks(credentials, call)


def test_rank_that_sends_too_much_is_cut_off(credentials: ShardTlsCredentials) -> None:
    def call(meeting_point: str) -> None:
        with open_store(meeting_point, credentials) as store, pytest.raises(PeerLost):
            store.set("a", bytes(MAX_VALUE_BYTES + 1))
    run_ranks(credentials, call)


def test_launcher_that_is_not_there_is_an_error(credentials: ShardTlsCredentials) -> None:
    with pytest.raises(PeerLost, match=r"cannot reach the first host's launcher at 127\.0\.0\.1:"):
        RendezvousClient(f"127.0.0.1:{find_free_port()}/run-1", credentials, SHORT)


def test_gloo_meets_through_the_store(credentials: ShardTlsCredentials, tmp_path: Path) -> None:
    def join(rank: int, meeting_point: str) -> list[float]:
        group: RankGroup = GlooGroup(rank, 2, Rendezvous(meeting_point, "127.0.0.1", credentials))
        total = group.all_reduce_sum(torch.tensor([1.0 + rank])).tolist()
        group._store.close()  # type: ignore[attr-defined]
        return total
    assert run_ranks(credentials, lambda point: join(0, point), lambda point: join(1, point)) == [[3.0], [3.0]]
