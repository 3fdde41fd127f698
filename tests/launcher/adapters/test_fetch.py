"""Tests of sequential and concurrent fetches: lookups, cached results, and access by token."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.checkpoints.adapter_files import (
    CONFIG_FILE,
    list_incomplete_downloads,
    list_stored_versions,
    make_adapter_files,
    write_files,
)

from launcher.adapters.allow_list import AdapterAllowList
from launcher.adapters.errors import AdapterError
from launcher.adapters.fetch import MAX_CONCURRENT_FETCHES, AdapterFetcher, FetchedAdapter
from launcher.adapters.sources.interface import FetchableAdapter
from launcher.adapters.store import AdapterVersionStore
from launcher.adapters.store_protocol import FetchRequest

ADAPTER_BYTES = sum(map(len, make_adapter_files().values()))
TIMEOUT_SECONDS = 60.0  # seconds


class FakeAdapterSource:
    """Fake source: `seed_by_name[name]` makes an adapter, and `token_by_name[name]` is the only token that may see
    it."""

    def __init__(self, *, is_remote: bool = True) -> None:
        self.is_remote = is_remote
        self.seed_by_name = {"a": 1, "b": 2}
        self.token_by_name: dict[str, str] = {}
        self.has_stamps = True
        self.failure: Exception | None = None
        self.local_seed_by_name: dict[str, int] = {}  # seeds of the adapters that `find_local_copy` finds
        self.lookups: list[FetchRequest] = []
        self.num_copies = 0
        self.before_copy: Callable[[str], object] = lambda name: None

    def make_uri(self, name: str) -> str:
        return f"{'hub' if self.is_remote else 'local'}://{name}"

    def list_tokens_to_try(self, request: FetchRequest) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("", request.token)))

    @contextmanager
    def open_adapter(self, request: FetchRequest) -> Iterator[FetchableAdapter]:
        self.lookups.append(request)
        if self.failure:
            raise self.failure
        token = self.token_by_name.get(request.name, "")
        if request.name not in self.seed_by_name or token not in self.list_tokens_to_try(request):
            raise AdapterError("missing", "there is none")
        yield self.make_remote_version(request.name, self.seed_by_name[request.name], token)

    def find_local_copy(self, request: FetchRequest) -> FetchableAdapter | None:
        return self.make_remote_version(
            request.name, self.local_seed_by_name[request.name]) if request.name in self.local_seed_by_name else None

    def make_remote_version(self, name: str, seed: int, token: str = "") -> FetchableAdapter:
        def copy_files(folder: Path) -> None:
            self.num_copies += 1
            self.before_copy(name)
            write_files(folder, make_adapter_files(seed))

        return FetchableAdapter(ADAPTER_BYTES, copy_files, seed if self.has_stamps else None, token,
                                is_private=bool(token))


class FetcherHarness:
    def __init__(self, folder: Path, allowed_adapters: tuple[str, ...] = ()) -> None:
        self.remote_source, self.local_source = FakeAdapterSource(), FakeAdapterSource(is_remote=False)
        self.store = AdapterVersionStore(folder, 10**9)
        self.fetcher = AdapterFetcher(self.store, {"hub": self.remote_source, "local": self.local_source},
                                      AdapterAllowList(allowed_adapters, {}))

    def close(self) -> None:
        self.fetcher.close()
        self.store.close()

    def start(self, name: str = "a", source: str = "hub", **fetch_fields: object) -> Future[FetchedAdapter]:
        return self.fetcher.start_fetch(FetchRequest(source, name, **fetch_fields))  # type: ignore[arg-type]  # any of its fields

    def fetch(self, name: str = "a", source: str = "hub", **fetch_fields: object) -> FetchedAdapter:
        return self.start(name, source, **fetch_fields).result(TIMEOUT_SECONDS)

    def expect_error(self, name: str = "a", source: str = "hub", **fetch_fields: object) -> AdapterError:
        with pytest.raises(AdapterError) as refused:
            self.fetch(name, source, **fetch_fields)
        return refused.value


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[FetcherHarness]:
    with closing(FetcherHarness(tmp_path)) as bench:
        yield bench


# -- one after the other


def test_remote_name_is_looked_up_once_unless_fresh(harness: FetcherHarness) -> None:
    first = harness.fetch()
    assert harness.fetch() == first
    assert len(harness.remote_source.lookups) == 1
    harness.remote_source.seed_by_name["a"] = 3
    assert harness.fetch() == first
    second = harness.fetch(skips_name_cache=True)
    assert (harness.fetch(), second != first, len(harness.remote_source.lookups)) == (second, True, 2)


def test_local_adapter_is_looked_up_every_time(harness: FetcherHarness) -> None:
    first = harness.fetch(source="local")
    harness.local_source.seed_by_name["a"] = 3
    assert harness.fetch(source="local") != first


def test_unchanged_stamp_avoids_another_copy(harness: FetcherHarness) -> None:
    assert harness.fetch(skips_name_cache=True) == harness.fetch(skips_name_cache=True)
    assert harness.remote_source.num_copies == 1
    harness.remote_source.has_stamps = False
    harness.fetch(skips_name_cache=True)
    assert harness.remote_source.num_copies == 2


def test_same_adapter_from_two_sources_is_stored_once(harness: FetcherHarness) -> None:
    assert harness.fetch(source="local") == harness.fetch()
    assert len(list_stored_versions(harness.store.folder)) == 1


def test_version_missing_from_the_store_is_fetched_again(harness: FetcherHarness) -> None:
    first = harness.fetch()
    harness.store._delete_version(first.version.digest)
    assert harness.fetch() == first
    assert harness.remote_source.num_copies == 2


def test_adapter_outside_the_allow_list_is_only_fetched_for_the_settings(tmp_path: Path) -> None:
    with closing(FetcherHarness(tmp_path, ("hub://b",))) as harness:
        assert harness.expect_error("a").kind == harness.expect_error("b", source="local").kind == "forbidden"
        assert harness.remote_source.lookups == harness.local_source.lookups == []
        harness.fetch("b")
        harness.fetch("a", is_from_settings=True)


def test_names_are_separate_per_source(harness: FetcherHarness) -> None:
    harness.fetch()
    harness.local_source.seed_by_name.clear()
    assert harness.expect_error(source="local").kind == "missing"


# -- access by token


def test_private_adapter_is_returned_only_for_its_token(harness: FetcherHarness) -> None:
    harness.remote_source.token_by_name["a"] = "hf_mine"
    fetched = harness.fetch(token="hf_mine")
    assert fetched.is_private
    assert harness.expect_error().kind == harness.expect_error(token="hf_other").kind == "missing"
    assert harness.fetch(token="hf_mine") == fetched


def test_public_adapter_is_returned_for_every_token(harness: FetcherHarness) -> None:
    assert harness.fetch(token="hf_mine") == harness.fetch(token="hf_other") == harness.fetch()
    assert len(harness.remote_source.lookups) == 1


def test_adapter_that_became_private_is_forgotten(harness: FetcherHarness) -> None:
    harness.fetch()
    harness.remote_source.token_by_name["a"] = "hf_mine"
    assert harness.fetch(token="hf_mine", skips_name_cache=True).is_private
    assert harness.expect_error().kind == "missing"


def test_deleted_adapter_is_forgotten(harness: FetcherHarness) -> None:
    harness.fetch()
    del harness.remote_source.seed_by_name["a"]
    assert harness.expect_error(skips_name_cache=True).kind == harness.expect_error().kind == "missing"


# -- without the source


UNREACHABLE_ERROR = AdapterError("unreachable", "cannot reach the Hub")


def test_last_version_is_used_if_the_source_fails(harness: FetcherHarness) -> None:
    fetched = harness.fetch()
    harness.remote_source.failure, harness.remote_source.local_seed_by_name["a"] = UNREACHABLE_ERROR, 5
    assert harness.fetch(skips_name_cache=True) == fetched


def test_private_version_stays_private_if_the_source_fails(harness: FetcherHarness) -> None:
    harness.remote_source.token_by_name["a"] = "hf_mine"
    fetched = harness.fetch(token="hf_mine")
    harness.remote_source.failure = UNREACHABLE_ERROR
    assert harness.fetch(token="hf_mine", skips_name_cache=True) == fetched
    assert harness.expect_error(token="hf_other").kind == "unreachable"
    assert harness.expect_error(skips_name_cache=True).kind == "unreachable"


def test_local_copy_is_used_and_copied_once_if_the_source_fails(harness: FetcherHarness) -> None:
    harness.remote_source.failure, harness.remote_source.local_seed_by_name["a"] = UNREACHABLE_ERROR, 5
    assert harness.fetch() == harness.fetch()
    assert harness.remote_source.num_copies == 1
    harness.remote_source.failure = None
    assert harness.fetch() != harness.fetch("b")


def test_unreadable_folder_is_an_error_rather_than_its_last_version(harness: FetcherHarness) -> None:
    harness.fetch(source="local")
    harness.local_source.failure = UNREACHABLE_ERROR
    assert harness.expect_error(source="local").kind == "unreachable"


@pytest.mark.parametrize(("failure", "kind"), [
    (AdapterError("forbidden", "no"), "forbidden"), (ValueError("no"), "invalid"), (OSError(28, "full"), "no_room"),
    (OSError(5, "broken"), "unreachable"), (RuntimeError("no"), "unreachable")])
def test_failure_is_reported_and_the_next_fetch_can_succeed(harness: FetcherHarness, failure: Exception,
                                                            kind: str) -> None:
    harness.remote_source.failure = failure
    assert harness.expect_error().kind == kind
    harness.remote_source.failure = None
    assert harness.fetch().version.folder.is_dir()


def test_invalid_adapter_leaves_no_files(harness: FetcherHarness) -> None:
    def fail_copy(name: str) -> None:
        raise ValueError(f"{CONFIG_FILE} is not JSON")

    harness.remote_source.before_copy = fail_copy
    assert str(harness.expect_error()) == "the adapter 'a' cannot be served: adapter_config.json is not JSON"
    assert (list_stored_versions(harness.store.folder), list_incomplete_downloads(harness.store.folder)) == (set(), [])


@pytest.mark.slow
def test_many_failures_leave_no_files(harness: FetcherHarness) -> None:
    def fail_copy(name: str) -> None:
        if name != "a":
            raise ValueError(f"{CONFIG_FILE} is not JSON")

    harness.remote_source.before_copy = fail_copy
    harness.remote_source.seed_by_name |= {f"broken-{number}": 100 + number for number in range(20)}
    first = harness.fetch()
    kinds = {harness.expect_error(f"broken-{number % 20}" if number % 2 else f"nobody-{number}").kind
             for number in range(1000)}
    assert kinds == {"invalid", "missing"}
    assert (list_stored_versions(harness.store.folder),
            list_incomplete_downloads(harness.store.folder)) == ({first.version.digest}, [])
    assert harness.fetch() == first


def test_too_large_adapter_is_not_copied(harness: FetcherHarness) -> None:
    harness.store._max_bytes = ADAPTER_BYTES - 1
    assert harness.expect_error().kind == "invalid"  # a permanent error
    assert harness.remote_source.num_copies == 0


# -- at the same time


class DownloadGate:
    """Gate at which downloads of `names` wait until it is opened."""

    def __init__(self, source: FakeAdapterSource, *names: str) -> None:
        self.arrived, self.opened, self._names = threading.Semaphore(0), threading.Event(), names
        source.before_copy = self.wait_if_gated

    def wait_if_gated(self, name: str) -> None:
        if name in self._names:
            self.arrived.release()
            assert self.opened.wait(TIMEOUT_SECONDS)


def test_concurrent_fetches_of_one_adapter_copy_it_once(harness: FetcherHarness) -> None:
    gate = DownloadGate(harness.remote_source, "a")
    started = [harness.start() for _ in range(5)]
    assert gate.arrived.acquire(timeout=TIMEOUT_SECONDS)
    started += [harness.start() for _ in range(5)]
    gate.opened.set()
    assert len({future.result(TIMEOUT_SECONDS) for future in started}) == 1
    assert (harness.remote_source.num_copies, len(harness.remote_source.lookups)) == (1, 1)


def test_fresh_fetch_does_not_reuse_a_running_lookup(harness: FetcherHarness) -> None:
    gate = DownloadGate(harness.remote_source, "a")
    first = harness.start()
    assert gate.arrived.acquire(timeout=TIMEOUT_SECONDS)
    harness.remote_source.seed_by_name["a"] = 3
    second = harness.start(skips_name_cache=True)
    gate.opened.set()
    assert second.result(TIMEOUT_SECONDS) != first.result(TIMEOUT_SECONDS)


def test_concurrent_fetches_with_another_token_are_looked_up_separately(harness: FetcherHarness) -> None:
    harness.remote_source.token_by_name["a"] = "hf_mine"
    gate = DownloadGate(harness.remote_source, "a")
    allowed, other = harness.start(token="hf_mine"), harness.start(token="hf_other")
    gate.opened.set()
    assert allowed.result(TIMEOUT_SECONDS).is_private
    assert isinstance(other.exception(TIMEOUT_SECONDS), AdapterError)


def test_slow_fetches_do_not_delay_others(harness: FetcherHarness) -> None:
    harness.remote_source.seed_by_name |= {str(seed): seed for seed in range(10, 10 + MAX_CONCURRENT_FETCHES)}
    harness.fetch("b")
    gate = DownloadGate(harness.remote_source, *harness.remote_source.seed_by_name)
    slow_fetches = [harness.start(str(seed)) for seed in range(10, 10 + MAX_CONCURRENT_FETCHES)]
    assert all(gate.arrived.acquire(timeout=TIMEOUT_SECONDS) for _ in slow_fetches)
    assert harness.start("b").done()
    assert harness.fetch(source="local")
    gate.opened.set()
    assert len({future.result(TIMEOUT_SECONDS).version.digest for future in slow_fetches}) == MAX_CONCURRENT_FETCHES
