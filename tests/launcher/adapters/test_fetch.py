"""Tests of sequential and concurrent fetches: lookups, cached results, and access by token."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.adapter_files import CONFIG, adapter_files, kept, left_over, write

from launcher.adapters.errors import Refused
from launcher.adapters.fetch import AT_ONCE, Fetched, Fetching
from launcher.adapters.protocol import Fetch
from launcher.adapters.remote_version import Sighting
from launcher.adapters.store import Store

SIZE = sum(map(len, adapter_files().values()))
LONGEST = 60.0  # seconds


class Shelf:
    """Fake source: `seeds[name]` makes an adapter, and `opened_by[name]` is the only token that may see it."""

    def __init__(self, *, is_far: bool = True) -> None:
        self.is_far = is_far
        self.seeds = {"a": 1, "b": 2}
        self.opened_by: dict[str, str] = {}
        self.stamps = True
        self.failure: Exception | None = None
        self.around: dict[str, int] = {}  # seeds of the adapters that `nearby` finds
        self.looks: list[Fetch] = []
        self.num_brought = 0
        self.on_bring: Callable[[str], object] = lambda name: None

    def tokens(self, asked: Fetch) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("", asked.token)))

    @contextmanager
    def look(self, asked: Fetch) -> Iterator[Sighting]:
        self.looks.append(asked)
        if self.failure:
            raise self.failure
        token = self.opened_by.get(asked.name, "")
        if asked.name not in self.seeds or token not in self.tokens(asked):
            raise Refused("missing", "there is none")
        yield self.sighting(asked.name, self.seeds[asked.name], token)

    def nearby(self, asked: Fetch) -> Sighting | None:
        return self.sighting(asked.name, self.around[asked.name]) if asked.name in self.around else None

    def sighting(self, name: str, seed: int, token: str = "") -> Sighting:
        def bring(folder: Path) -> None:
            self.num_brought += 1
            self.on_bring(name)
            write(folder, adapter_files(seed))

        return Sighting(SIZE, bring, seed if self.stamps else None, token, private=bool(token))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.far, self.near = Shelf(), Shelf(is_far=False)
        self.store = Store(folder, 10**9)
        self.fetching = Fetching(self.store, {"hub": self.far, "local": self.near})

    def close(self) -> None:
        self.fetching.close()
        self.store.close()

    def start(self, name: str = "a", source: str = "hub", **asked: object) -> Future[Fetched]:
        return self.fetching.start(Fetch(source, name, **asked))  # type: ignore[arg-type]  # any fields of Fetch

    def fetch(self, name: str = "a", source: str = "hub", **asked: object) -> Fetched:
        return self.start(name, source, **asked).result(LONGEST)

    def refusal(self, name: str = "a", source: str = "hub", **asked: object) -> Refused:
        with pytest.raises(Refused) as refused:
            self.fetch(name, source, **asked)
        return refused.value


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


# -- one after the other


def test_a_name_is_looked_at_once_and_anew_for_who_wants_it(bench: Bench) -> None:
    first = bench.fetch()
    assert bench.fetch() == first
    assert len(bench.far.looks) == 1
    bench.far.seeds["a"] = 3
    assert bench.fetch() == first
    anew = bench.fetch(fresh=True)
    assert (bench.fetch(), anew != first, len(bench.far.looks)) == (anew, True, 2)


def test_what_is_near_is_looked_at_every_time(bench: Bench) -> None:
    first = bench.fetch(source="local")
    bench.near.seeds["a"] = 3
    assert bench.fetch(source="local") != first


def test_what_has_the_same_stamp_is_not_brought_again(bench: Bench) -> None:
    assert bench.fetch(fresh=True) == bench.fetch(fresh=True)
    assert bench.far.num_brought == 1
    bench.far.stamps = False
    bench.fetch(fresh=True)
    assert bench.far.num_brought == 2


def test_two_sources_may_have_the_same(bench: Bench) -> None:
    assert bench.fetch(source="local") == bench.fetch()
    assert len(kept(bench.store.folder)) == 1


def test_what_is_gone_from_the_store_is_brought_again(bench: Bench) -> None:
    first = bench.fetch()
    bench.store._remove(first.version.digest)
    assert bench.fetch() == first
    assert bench.far.num_brought == 2


def test_names_are_those_of_their_source(bench: Bench) -> None:
    bench.fetch()
    bench.near.seeds.clear()
    assert bench.refusal(source="local").kind == "missing"


# -- access by token


def test_what_a_token_opened_is_told_to_that_token_alone(bench: Bench) -> None:
    bench.far.opened_by["a"] = "hf_mine"
    found = bench.fetch(token="hf_mine")
    assert found.private
    assert bench.refusal().kind == bench.refusal(token="hf_other").kind == "missing"
    assert bench.fetch(token="hf_mine") == found


def test_what_is_public_is_told_to_everybody(bench: Bench) -> None:
    assert bench.fetch(token="hf_mine") == bench.fetch(token="hf_other") == bench.fetch()
    assert len(bench.far.looks) == 1


def test_what_is_no_longer_public_is_forgotten(bench: Bench) -> None:
    bench.fetch()
    bench.far.opened_by["a"] = "hf_mine"
    assert bench.fetch(token="hf_mine", fresh=True).private
    assert bench.refusal().kind == "missing"


def test_what_is_no_longer_there_is_forgotten(bench: Bench) -> None:
    bench.fetch()
    del bench.far.seeds["a"]
    assert bench.refusal(fresh=True).kind == bench.refusal().kind == "missing"


# -- without the source


UNREACHABLE = Refused("unreachable", "cannot reach the Hub")


def test_without_its_source_the_last_one_is_enough(bench: Bench) -> None:
    found = bench.fetch()
    bench.far.failure, bench.far.around["a"] = UNREACHABLE, 5
    assert bench.fetch(fresh=True) == found


def test_without_its_source_what_was_private_stays_so(bench: Bench) -> None:
    bench.far.opened_by["a"] = "hf_mine"
    found = bench.fetch(token="hf_mine")
    bench.far.failure = UNREACHABLE
    assert bench.fetch(token="hf_mine", fresh=True) == found
    assert bench.refusal(token="hf_other").kind == bench.refusal(fresh=True).kind == "unreachable"


def test_without_its_source_what_is_nearby_is_enough_and_is_copied_once(bench: Bench) -> None:
    bench.far.failure, bench.far.around["a"] = UNREACHABLE, 5
    assert bench.fetch() == bench.fetch()
    assert bench.far.num_brought == 1
    bench.far.failure = None
    assert bench.fetch() != bench.fetch("b")


def test_a_folder_that_cannot_be_read_is_not_what_it_was(bench: Bench) -> None:
    bench.fetch(source="local")
    bench.near.failure = UNREACHABLE
    assert bench.refusal(source="local").kind == "unreachable"


@pytest.mark.parametrize(("failure", "kind"), [
    (Refused("forbidden", "no"), "forbidden"), (ValueError("no"), "invalid"), (OSError(28, "full"), "no_room"),
    (OSError(5, "broken"), "unreachable"), (RuntimeError("no"), "unreachable")])
def test_a_failure_is_told_and_the_next_may_succeed(bench: Bench, failure: Exception, kind: str) -> None:
    bench.far.failure = failure
    assert bench.refusal().kind == kind
    bench.far.failure = None
    assert bench.fetch().version.folder.is_dir()


def test_what_is_no_adapter_leaves_nothing(bench: Bench) -> None:
    def spoil(name: str) -> None:
        raise ValueError(f"{CONFIG} is not JSON")

    bench.far.on_bring = spoil
    assert str(bench.refusal()) == "the adapter 'a' cannot be served: adapter_config.json is not JSON"
    assert (kept(bench.store.folder), left_over(bench.store.folder)) == (set(), [])


@pytest.mark.slow
def test_a_thousand_failures_leave_the_disk_as_it_was(bench: Bench) -> None:
    def spoil(name: str) -> None:
        if name != "a":
            raise ValueError(f"{CONFIG} is not JSON")

    bench.far.on_bring = spoil
    bench.far.seeds |= {f"broken-{number}": 100 + number for number in range(20)}
    first = bench.fetch()
    kinds = {bench.refusal(f"broken-{number % 20}" if number % 2 else f"nobody-{number}").kind
             for number in range(1000)}
    assert kinds == {"invalid", "missing"}
    assert (kept(bench.store.folder), left_over(bench.store.folder)) == ({first.version.digest}, [])
    assert bench.fetch() == first


def test_what_is_too_large_is_not_brought(bench: Bench) -> None:
    bench.store._most = SIZE - 1
    assert bench.refusal().kind == "invalid"  # a permanent error
    assert bench.far.num_brought == 0


# -- at the same time


class Gate:
    """Gate at which downloads of `names` wait until it is opened."""

    def __init__(self, shelf: Shelf, *names: str) -> None:
        self.arrived, self.opened, self._names = threading.Semaphore(0), threading.Event(), names
        shelf.on_bring = self.wait

    def wait(self, name: str) -> None:
        if name in self._names:
            self.arrived.release()
            assert self.opened.wait(LONGEST)


def test_the_same_is_brought_once_for_all_who_wait(bench: Bench) -> None:
    gate = Gate(bench.far, "a")
    started = [bench.start() for _ in range(5)]
    assert gate.arrived.acquire(timeout=LONGEST)
    started += [bench.start() for _ in range(5)]
    gate.opened.set()
    assert len({future.result(LONGEST) for future in started}) == 1
    assert (bench.far.num_brought, len(bench.far.looks)) == (1, 1)


def test_who_wants_to_look_anew_does_not_take_what_was_seen_before(bench: Bench) -> None:
    gate = Gate(bench.far, "a")
    first = bench.start()
    assert gate.arrived.acquire(timeout=LONGEST)
    bench.far.seeds["a"] = 3
    anew = bench.start(fresh=True)
    gate.opened.set()
    assert anew.result(LONGEST) != first.result(LONGEST)


def test_somebody_elses_token_is_looked_at_by_itself(bench: Bench) -> None:
    bench.far.opened_by["a"] = "hf_mine"
    gate = Gate(bench.far, "a")
    mine, other = bench.start(token="hf_mine"), bench.start(token="hf_other")
    gate.opened.set()
    assert mine.result(LONGEST).private
    assert isinstance(other.exception(LONGEST), Refused)


def test_a_slow_fetch_holds_up_no_other_and_eight_are_under_way(bench: Bench) -> None:
    bench.far.seeds |= {str(seed): seed for seed in range(10, 10 + AT_ONCE)}
    bench.fetch("b")
    gate = Gate(bench.far, *bench.far.seeds)
    slow = [bench.start(str(seed)) for seed in range(10, 10 + AT_ONCE)]
    assert all(gate.arrived.acquire(timeout=LONGEST) for _ in slow)
    assert bench.start("b").done()
    assert bench.fetch(source="local")
    gate.opened.set()
    assert len({future.result(LONGEST).version.digest for future in slow}) == AT_ONCE
