"""Tests of the adapter store's folder: versions enter, are evicted, and are never visible half written."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.adapter_files import CONFIG, WEIGHTS, adapter_files, kept, left_over, write
from support.header_mutations import KINDS, mutate

from launcher.adapters import store as module
from launcher.adapters.contents import digest_of
from launcher.adapters.errors import Refused, understood
from launcher.adapters.store import Store, Version

SIZE = sum(map(len, adapter_files().values()))  # the same for every seed
PLENTY = 10**9


def put(store: Store, seed: int = 0, **files: bytes) -> Version:
    with store.incoming() as incoming:
        write(incoming.folder, adapter_files(seed) | files)
        return store.publish(incoming.folder)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path, PLENTY, count(10**18).__next__)) as store:
        yield store


# -- entering


def test_a_version_lies_under_its_digest_and_is_found(store: Store) -> None:
    version = put(store)
    assert version.folder == store.folder / "versions" / digest_of(version.folder)
    assert {path.name: path.read_bytes() for path in version.folder.iterdir()} == adapter_files()
    assert store.find(version.digest) == version
    assert left_over(store.folder) == []


def test_the_same_twice_is_kept_once(store: Store) -> None:
    first = put(store)
    inode = first.folder.stat().st_ino
    assert put(store) == first
    assert (first.folder.stat().st_ino, left_over(store.folder)) == (inode, [])


def test_what_was_never_here_is_not_found(store: Store) -> None:
    assert store.find("0" * 64) is None


def test_a_store_that_starts_again_has_what_it_had(store: Store) -> None:
    version = put(store)
    with closing(Store(store.folder, PLENTY)) as other:
        assert other.find(version.digest) == version


def test_what_is_no_adapter_does_not_enter(store: Store) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        put(store, **{CONFIG: b"{"})
    assert (kept(store.folder), left_over(store.folder)) == (set(), [])


def test_everything_is_on_the_disk_before_it_enters(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    put(store)
    assert set(synced[:2]) == {CONFIG, WEIGHTS}
    assert synced[3:] == ["versions"]


@pytest.mark.parametrize("call", ["fsync", "rename", "utime"])
def test_a_disk_that_fails_at_any_moment_leaves_nothing_half(
        store: Store, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "rename", full) if call == "rename" else (os, call, full)))
        with pytest.raises(OSError, match="No space"):
            put(store)
    assert all(store.find(digest) for digest in kept(store.folder))
    assert left_over(store.folder) == []
    assert put(store).folder.is_dir()


# -- leaving


def test_what_was_not_asked_for_longest_goes_first(tmp_path: Path) -> None:
    with closing(Store(tmp_path, 2 * SIZE, count(10**18).__next__)) as store:
        first, second = put(store, 1), put(store, 2)
        assert store.find(first.digest)
        third = put(store, 3)
        assert kept(tmp_path) == {first.digest, third.digest}
        assert store.find(second.digest) is None


def test_what_is_pinned_stays_until_it_is_not(tmp_path: Path) -> None:
    with closing(Store(tmp_path, 2 * SIZE, count(10**18).__next__)) as store:
        first, second = put(store, 1), put(store, 2)
        assert store.pin([first.digest]) == []
        third = put(store, 3)
        assert kept(tmp_path) == {first.digest, third.digest}
        assert store.pin([second.digest]) == [second.digest]
        fourth = put(store, 4)
        assert kept(tmp_path) == {third.digest, fourth.digest}


def test_what_does_not_fit_beside_what_is_pinned_is_refused_and_nothing_goes(tmp_path: Path) -> None:
    with closing(Store(tmp_path, 2 * SIZE, count(10**18).__next__)) as store:
        first, second = put(store, 1), put(store, 2)
        store.pin([first.digest, second.digest])
        with pytest.raises(Refused, match=r"may take \d.* on disk \(--adapter-disk-gb\), and .* in use") as refused:
            put(store, 3)
        with pytest.raises(Refused, match="does not fit"):
            store.check_room(1)
        assert refused.value.kind == "no_room"
        assert (kept(tmp_path), left_over(tmp_path)) == ({first.digest, second.digest}, [])


def test_what_is_read_stays_while_it_is_read(tmp_path: Path) -> None:
    with closing(Store(tmp_path, SIZE)) as store:
        first = put(store, 1)
        with store.holding([first.digest, "0" * 64]) as missing:
            assert missing == ["0" * 64]
            with pytest.raises(Refused):
                put(store, 2)
        put(store, 2)
        assert store.find(first.digest) is None


def test_a_budget_that_became_smaller_holds_at_once(store: Store) -> None:
    versions = [put(store, seed) for seed in range(3)]
    with closing(Store(store.folder, SIZE)):
        assert kept(store.folder) == {versions[-1].digest}


def test_a_disk_that_is_too_small_is_told_before_anything_comes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    version = put(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(Refused, match=r"the disk is too small: 100.0 MB are to come, and 5.0 kB are free") as refused:
        store.check_room(100_000_000)
    assert refused.value.kind == "no_room"
    assert store.find(version.digest)


def test_a_full_disk_is_cleared_of_what_nobody_needs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (put(store, seed) for seed in range(3))
    store.pin([first.digest])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=(3 - len(kept(store.folder))) * SIZE))
    store.check_room(SIZE)
    assert kept(store.folder) == {first.digest, third.digest}
    assert store.find(second.digest) is None


def test_what_is_kept_is_looked_at_once_however_many_come(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    look = store._size
    monkeypatch.setattr(store, "_size", lambda digest: looked_at.append(digest) or look(digest))
    versions = [put(store, seed) for seed in range(3)]
    store.check_room(100)
    store.check_room(100)
    assert sorted(looked_at) == sorted(version.digest for version in versions)


def test_a_download_goes_with_the_version_that_it_became(tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "models--org--name" / "blobs"
    with closing(Store(tmp_path, SIZE)) as store:
        write(blobs, {"other": b"of another"})
        with store.incoming() as incoming:
            for name, path in ((name, write(blobs, adapter_files()) / name) for name in adapter_files()):
                os.link(path, incoming.folder / name)
            store.publish(incoming.folder)
        put(store, 1)
        assert [path.name for path in blobs.iterdir()] == ["other"]


Step = tuple[str, int]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["fetch", "find", "pin", "unpin"]), st.integers(0, 5)), max_size=25),
       st.integers(0, 4))
@pytest.mark.slow
def test_the_budget_holds_whatever_happens(tmp_path_factory: pytest.TempPathFactory, steps: list[Step],
                                           room: int) -> None:
    """Compare the store with a list in order of use, which determines the versions that must be kept."""
    folder = tmp_path_factory.mktemp("store")
    digests = {seed: digest_of(write(tmp_path_factory.mktemp("adapter"), adapter_files(seed))) for seed in range(6)}
    with closing(Store(folder, room * SIZE, count(10**18).__next__)) as store:
        order: list[int] = []  # the most recently used is last
        pinned: set[int] = set()
        for what, seed in steps:
            if what in {"pin", "unpin"}:
                pinned ^= {seed} & (pinned if what == "unpin" else set(order) - pinned)
                assert store.pin([digests[one] for one in pinned]) == []
                continue
            if what == "fetch" and seed not in order:
                if len(pinned) >= room:
                    with pytest.raises(Refused):
                        put(store, seed)
                    continue
                while len(order) >= room:
                    order.remove(next(one for one in order if one not in pinned))
                order.append(seed)
            found = put(store, seed) if what == "fetch" else store.find(digests[seed])
            assert bool(found) == (seed in order)
            order.sort(key=lambda one: one == seed)
            assert kept(folder) == {digests[one] for one in order}
            assert len(order) <= room


# -- other processes, alive and dead


def test_two_stores_on_one_folder_keep_what_either_needs(tmp_path: Path) -> None:
    now = count(10**18).__next__
    with closing(Store(tmp_path, 2 * SIZE, now)) as one, closing(Store(tmp_path, 2 * SIZE, now)) as other:
        first = put(one, 1)
        one.pin([first.digest])
        second, third = put(other, 2), put(other, 3)
        assert kept(tmp_path) == {first.digest, third.digest}
        assert one.find(second.digest) is None
        with one.incoming() as incoming, closing(Store(tmp_path, 2 * SIZE)):
            assert incoming.folder.is_dir()


def test_what_the_dead_left_is_removed_at_start(store: Store) -> None:
    write(store.folder / "incoming" / "left", adapter_files())
    write(store.folder / "pins", {"left": b"0" * 64 + b"\n"})
    old, new = (write(store.folder / "hub/models--a--b/blobs", {name: b""}) / name for name in ("old", "new"))
    os.utime(old, (0, 0))
    with store.incoming() as alive, closing(Store(store.folder, PLENTY)):
        assert left_over(store.folder) == [alive.folder]
        assert (old.exists(), new.exists()) == (False, True)
        assert len(list((store.folder / "pins").iterdir())) == 2


CHILD = """
import json, os, sys
sys.path.insert(0, "tests")
from pathlib import Path
from random import Random
from support.adapter_files import adapter_files, write
from launcher.adapters.store import Store
folder, seed, call, number = json.loads(sys.argv[1])
left = number
if call:
    real = getattr(os, call)
    def last(*arguments, **names):
        global left
        if not left:
            os.kill(os.getpid(), 9)
        left -= 1
        return real(*arguments, **names)
    setattr(os, call, last)
store = Store(Path(folder), 10**9)
with store.incoming() as incoming:
    write(incoming.folder, adapter_files(seed))
    store.pin([store.publish(incoming.folder).digest])
print("ready", flush=True)
sys.stdin.read()
"""


def child(folder: Path, seed: int, call: str = "", number: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", CHILD, json.dumps([str(folder), seed, call, number])],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "rename", "utime", "close"])
@pytest.mark.parametrize("number", range(4))
def test_a_kill_at_any_moment_leaves_versions_whole(tmp_path: Path, call: str, number: int) -> None:
    with child(tmp_path, 0, call, number) as killed:
        killed.communicate()
    with closing(Store(tmp_path, PLENTY)) as store:
        assert left_over(tmp_path) == []
        found = kept(tmp_path)
        assert all(digest_of(store.folder / "versions" / digest) == digest for digest in found)
        assert found <= {put(store).digest}


@pytest.mark.slow
def test_what_another_process_needs_stays_until_it_is_killed(tmp_path: Path) -> None:
    with child(tmp_path, 1) as other:
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        with closing(Store(tmp_path, SIZE)) as store:
            with pytest.raises(Refused, match="in use"):
                put(store, 2)
            other.send_signal(signal.SIGKILL)
            other.wait()
            version = put(store, 2)
            assert kept(tmp_path) == {version.digest}


@pytest.mark.slow
def test_many_processes_at_once_keep_one_of_each(tmp_path: Path) -> None:
    others = [child(tmp_path, seed % 2) for seed in range(6)]
    assert [other.communicate()[0] for other in others] == ["ready\n"] * 6
    with closing(Store(tmp_path, PLENTY)) as store:
        assert kept(tmp_path) == {put(store, 0).digest, put(store, 1).digest}


def test_a_folder_that_is_held_is_nobody_elses(tmp_path: Path) -> None:
    with module.released(module.held(tmp_path)), pytest.raises(BlockingIOError):
        module.held(tmp_path)


def test_a_file_that_may_not_grow_is_a_disk_that_is_full(store: Store) -> None:
    """Simulate a full disk by the file size limit of the process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (kept(store.folder), left_over(store.folder)) == (set(), [])


# -- mutated adapters


def mutated_config(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content))
    return random.choice([
        content[:place], content[:place] + random.randbytes(3) + content[place + 3:], content * 2, b"",
        content[:place] + b"\0" + content[place:], b"[" * 5000, json.dumps({"peft_type": random.choice(
            ["lora", "IA3", None, 5, ["LORA"], {}])}).encode()])


def attempt(store: Store, files: dict[str, bytes]) -> str:
    """Return the digest, or the kind of the rejection."""
    try:
        with understood("the adapter"), store.incoming() as incoming:
            return store.publish(write(incoming.folder, files)).digest
    except Refused as refused:
        return refused.kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["config", *KINDS])
def test_a_mutated_adapter_is_refused_as_one_and_leaves_nothing(store: Store, kind: str) -> None:
    """Try 2,000 mutations in all. An accepted adapter's header fits its bytes, and its config is one of LoRA."""
    num_refused, files = 0, adapter_files()
    for seed in range(118):
        random = Random(f"{kind} {seed}")
        changed = ({CONFIG: mutated_config(files[CONFIG], random)} if kind == "config" else
                   {WEIGHTS: mutate(files[WEIGHTS], kind, random).content})
        before = kept(store.folder)
        found = attempt(store, files | changed)
        num_refused += found == "invalid"
        assert found == "invalid" or digest_of(store.folder / "versions" / found) == found
        assert kept(store.folder) == before | {found} - {"invalid"}
        assert left_over(store.folder) == []
    assert num_refused > {"flip": 100, "reshape": 90, "rename": 80, "add": 60}.get(kind, 110)
