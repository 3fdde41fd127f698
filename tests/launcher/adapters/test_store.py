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
from support.checkpoints.adapter_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    list_incomplete_downloads,
    list_stored_versions,
    make_adapter_files,
    write_files,
)
from support.checkpoints.header_mutations import MUTATION_KINDS, mutate_file

from launcher.adapters import store as module
from launcher.adapters.adapter_files import compute_digest
from launcher.adapters.errors import AdapterError, convert_errors_to_adapter_error
from launcher.adapters.store import AdapterVersion, AdapterVersionStore

ADAPTER_BYTES = sum(map(len, make_adapter_files().values()))  # the same for every seed
LARGE_BUDGET_BYTES = 10**9


def add_version(store: AdapterVersionStore, seed: int = 0, **files: bytes) -> AdapterVersion:
    with store.create_incoming_folder() as incoming:
        write_files(incoming.folder, make_adapter_files(seed) | files)
        return store.publish_version(incoming.folder)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AdapterVersionStore]:
    with closing(AdapterVersionStore(tmp_path, LARGE_BUDGET_BYTES, count(10**18).__next__)) as store:
        yield store


# -- entering


def test_version_is_stored_under_its_digest(store: AdapterVersionStore) -> None:
    version = add_version(store)
    assert version.folder == store.folder / "versions" / compute_digest(version.folder)
    assert {path.name: path.read_bytes() for path in version.folder.iterdir()} == make_adapter_files()
    assert store.find_version(version.digest) == version
    assert list_incomplete_downloads(store.folder) == []


def test_same_version_is_stored_once(store: AdapterVersionStore) -> None:
    first = add_version(store)
    inode = first.folder.stat().st_ino
    assert add_version(store) == first
    assert (first.folder.stat().st_ino, list_incomplete_downloads(store.folder)) == (inode, [])


def test_unknown_version_is_not_found(store: AdapterVersionStore) -> None:
    assert store.find_version("0" * 64) is None


def test_restarted_store_has_its_versions(store: AdapterVersionStore) -> None:
    version = add_version(store)
    with closing(AdapterVersionStore(store.folder, LARGE_BUDGET_BYTES)) as other:
        assert other.find_version(version.digest) == version


def test_invalid_adapter_is_not_stored(store: AdapterVersionStore) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        add_version(store, **{CONFIG_FILE: b"{"})
    assert (list_stored_versions(store.folder), list_incomplete_downloads(store.folder)) == (set(), [])


def test_files_are_synced_before_publication(store: AdapterVersionStore,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    add_version(store)
    assert set(synced[:2]) == {CONFIG_FILE, WEIGHTS_FILE}
    assert synced[3:] == ["versions"]


@pytest.mark.parametrize("call", ["fsync", "rename", "utime"])
def test_disk_errors_leave_nothing_half_written(
        store: AdapterVersionStore, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "rename", raise_disk_full) if call == "rename" else (os, call, raise_disk_full)))
        with pytest.raises(OSError, match="No space"):
            add_version(store)
    assert all(store.find_version(digest) for digest in list_stored_versions(store.folder))
    assert list_incomplete_downloads(store.folder) == []
    assert add_version(store).folder.is_dir()


# -- leaving


def test_least_recently_used_version_is_evicted(tmp_path: Path) -> None:
    with closing(AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES, count(10**18).__next__)) as store:
        first, second = add_version(store, 1), add_version(store, 2)
        assert store.find_version(first.digest)
        third = add_version(store, 3)
        assert list_stored_versions(tmp_path) == {first.digest, third.digest}
        assert store.find_version(second.digest) is None


def test_pinned_version_is_not_evicted(tmp_path: Path) -> None:
    with closing(AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES, count(10**18).__next__)) as store:
        first, second = add_version(store, 1), add_version(store, 2)
        assert store.replace_pins([first.digest]) == []
        third = add_version(store, 3)
        assert list_stored_versions(tmp_path) == {first.digest, third.digest}
        assert store.replace_pins([second.digest]) == [second.digest]
        fourth = add_version(store, 4)
        assert list_stored_versions(tmp_path) == {third.digest, fourth.digest}


def test_version_that_does_not_fit_beside_pinned_ones_is_rejected(tmp_path: Path) -> None:
    with closing(AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES, count(10**18).__next__)) as store:
        first, second = add_version(store, 1), add_version(store, 2)
        store.replace_pins([first.digest, second.digest])
        with pytest.raises(AdapterError,
                           match=r"may take \d.* on disk \(--adapter-disk-gb\), and .* in use") as refused:
            add_version(store, 3)
        with pytest.raises(AdapterError, match="does not fit"), store.reserve_room(1):
            pass
        assert refused.value.kind == "no_room"
        assert (list_stored_versions(tmp_path),
                list_incomplete_downloads(tmp_path)) == ({first.digest, second.digest}, [])


def test_version_being_read_is_not_evicted(tmp_path: Path) -> None:
    with closing(AdapterVersionStore(tmp_path, ADAPTER_BYTES)) as store:
        first = add_version(store, 1)
        with store.protect_versions([first.digest, "0" * 64]) as missing:
            assert missing == ["0" * 64]
            with pytest.raises(AdapterError):
                add_version(store, 2)
        add_version(store, 2)
        assert store.find_version(first.digest) is None


def test_smaller_budget_applies_at_start(store: AdapterVersionStore) -> None:
    versions = [add_version(store, seed) for seed in range(3)]
    with closing(AdapterVersionStore(store.folder, ADAPTER_BYTES)):
        assert list_stored_versions(store.folder) == {versions[-1].digest}


def test_too_small_disk_is_reported_before_a_download(
        store: AdapterVersionStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The folder, which clients must not see, is only logged."""
    version = add_version(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(AdapterError,
                       match=r"the disk is too small: 100.0 MB are to come, and 5.0 kB are free$"
                       ) as refused, store.reserve_room(100_000_000):
        pass
    assert refused.value.kind == "no_room"
    assert f"5.0 kB are free in {store.folder}" in caplog.text
    assert store.find_version(version.digest)


def test_fetches_under_way_do_not_exceed_the_budget_together(tmp_path: Path) -> None:
    """Regression: each was checked against the budget as if it were the only one."""
    with closing(AdapterVersionStore(tmp_path, 3 * ADAPTER_BYTES, count(10**18).__next__)) as store:
        first, second, third = (add_version(store, seed) for seed in range(3))
        store.replace_pins([first.digest])
        with store.reserve_room(ADAPTER_BYTES):
            assert list_stored_versions(tmp_path) == {first.digest, third.digest}
            with store.reserve_room(ADAPTER_BYTES):
                assert list_stored_versions(tmp_path) == {first.digest}
                with pytest.raises(AdapterError, match="does not fit") as refused, store.reserve_room(1):
                    pass
                assert refused.value.kind == "no_room"
        with store.reserve_room(ADAPTER_BYTES):
            assert store.find_version(second.digest) is None


def test_unused_versions_are_evicted_when_the_disk_is_full(store: AdapterVersionStore,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (add_version(store, seed) for seed in range(3))
    store.replace_pins([first.digest])
    monkeypatch.setattr(shutil, "disk_usage",
                        lambda _: SimpleNamespace(free=(3 - len(list_stored_versions(store.folder))) * ADAPTER_BYTES))
    with store.reserve_room(ADAPTER_BYTES):
        pass
    assert list_stored_versions(store.folder) == {first.digest, third.digest}
    assert store.find_version(second.digest) is None


def test_stored_sizes_are_measured_once(store: AdapterVersionStore,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    measure_version = store._measure_version
    monkeypatch.setattr(store, "_measure_version", lambda digest: looked_at.append(digest) or measure_version(digest))
    versions = [add_version(store, seed) for seed in range(3)]
    with store.reserve_room(100), store.reserve_room(100):
        pass
    assert sorted(looked_at) == sorted(version.digest for version in versions)


def test_download_is_deleted_with_its_version(tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "models--org--name" / "blobs"
    with closing(AdapterVersionStore(tmp_path, ADAPTER_BYTES)) as store:
        write_files(blobs, {"other": b"of another"})
        with store.create_incoming_folder() as incoming:
            for name, path in ((name, write_files(blobs, make_adapter_files()) / name)
                               for name in make_adapter_files()):
                os.link(path, incoming.folder / name)
            store.publish_version(incoming.folder)
        add_version(store, 1)
        assert [path.name for path in blobs.iterdir()] == ["other"]


StoreStep = tuple[str, int]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["fetch", "find", "pin", "unpin"]), st.integers(0, 5)), max_size=25),
       st.integers(0, 4))
@pytest.mark.slow
def test_budget_holds_under_random_operations(tmp_path_factory: pytest.TempPathFactory, steps: list[StoreStep],
                                              max_versions: int) -> None:
    """Compare the store with a list in order of use, which determines the versions that must be kept."""
    folder = tmp_path_factory.mktemp("store")
    digests = {seed: compute_digest(write_files(tmp_path_factory.mktemp("adapter"), make_adapter_files(seed)))
               for seed in range(6)}
    with closing(AdapterVersionStore(folder, max_versions * ADAPTER_BYTES, count(10**18).__next__)) as store:
        order_of_use: list[int] = []  # the most recently used is last
        pinned: set[int] = set()
        for operation, seed in steps:
            if operation in {"pin", "unpin"}:
                pinned ^= {seed} & (pinned if operation == "unpin" else set(order_of_use) - pinned)
                assert store.replace_pins([digests[one] for one in pinned]) == []
                continue
            if operation == "fetch" and seed not in order_of_use:
                if len(pinned) >= max_versions:
                    with pytest.raises(AdapterError):
                        add_version(store, seed)
                    continue
                while len(order_of_use) >= max_versions:
                    order_of_use.remove(next(one for one in order_of_use if one not in pinned))
                order_of_use.append(seed)
            version = add_version(store, seed) if operation == "fetch" else store.find_version(digests[seed])
            assert bool(version) == (seed in order_of_use)
            order_of_use.sort(key=lambda one: one == seed)
            assert list_stored_versions(folder) == {digests[one] for one in order_of_use}
            assert len(order_of_use) <= max_versions


# -- other processes, alive and dead


def test_stores_sharing_a_folder_keep_what_either_pins(tmp_path: Path) -> None:
    clock = count(10**18).__next__
    with closing(AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES, clock)) as one, closing(
        AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES, clock)) as other:
        first = add_version(one, 1)
        one.replace_pins([first.digest])
        second, third = add_version(other, 2), add_version(other, 3)
        assert list_stored_versions(tmp_path) == {first.digest, third.digest}
        assert one.find_version(second.digest) is None
        with one.create_incoming_folder() as incoming, closing(AdapterVersionStore(tmp_path, 2 * ADAPTER_BYTES)):
            assert incoming.folder.is_dir()


def test_leftovers_of_dead_processes_are_removed_at_start(store: AdapterVersionStore) -> None:
    write_files(store.folder / "incoming" / "left", make_adapter_files())
    write_files(store.folder / "pins", {"left": b"0" * 64 + b"\n"})
    old, new = (write_files(store.folder / "hub/models--a--b/blobs", {name: b""}) / name for name in ("old", "new"))
    os.utime(old, (0, 0))
    with store.create_incoming_folder() as alive, closing(AdapterVersionStore(store.folder, LARGE_BUDGET_BYTES)):
        assert list_incomplete_downloads(store.folder) == [alive.folder]
        assert (old.exists(), new.exists()) == (False, True)
        assert len(list((store.folder / "pins").iterdir())) == 2


CHILD_PROGRAM = """
import json, os, sys
sys.path.insert(0, "tests")
from pathlib import Path
from random import Random
from support.checkpoints.adapter_files import make_adapter_files, write_files
from launcher.adapters.store import AdapterVersionStore
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
store = AdapterVersionStore(Path(folder), 10**9)
with store.create_incoming_folder() as incoming:
    write_files(incoming.folder, make_adapter_files(seed))
    store.replace_pins([store.publish_version(incoming.folder).digest])
print("ready", flush=True)
sys.stdin.read()
"""


def start_child_store(folder: Path, seed: int, killing_call: str = "",
                      calls_before_kill: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", CHILD_PROGRAM,
                             json.dumps([str(folder), seed, killing_call, calls_before_kill])], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "rename", "utime", "close"])
@pytest.mark.parametrize("number", range(4))
def test_killed_process_leaves_only_whole_versions(tmp_path: Path, call: str, number: int) -> None:
    with start_child_store(tmp_path, 0, call, number) as killed:
        killed.communicate()
    with closing(AdapterVersionStore(tmp_path, LARGE_BUDGET_BYTES)) as store:
        assert list_incomplete_downloads(tmp_path) == []
        digests = list_stored_versions(tmp_path)
        assert all(compute_digest(store.folder / "versions" / digest) == digest for digest in digests)
        assert digests <= {add_version(store).digest}


@pytest.mark.slow
def test_version_pinned_by_another_process_is_kept_until_it_dies(tmp_path: Path) -> None:
    with start_child_store(tmp_path, 1) as other:
        assert other.stdout
        assert other.stdout.readline() == "ready\n"
        with closing(AdapterVersionStore(tmp_path, ADAPTER_BYTES)) as store:
            with pytest.raises(AdapterError, match="in use"):
                add_version(store, 2)
            other.send_signal(signal.SIGKILL)
            other.wait()
            version = add_version(store, 2)
            assert list_stored_versions(tmp_path) == {version.digest}


@pytest.mark.slow
def test_concurrent_processes_store_each_version_once(tmp_path: Path) -> None:
    processes = [start_child_store(tmp_path, seed % 2) for seed in range(6)]
    assert [other.communicate()[0] for other in processes] == ["ready\n"] * 6
    with closing(AdapterVersionStore(tmp_path, LARGE_BUDGET_BYTES)) as store:
        assert list_stored_versions(tmp_path) == {add_version(store, 0).digest, add_version(store, 1).digest}


def test_locked_folder_cannot_be_locked_again(tmp_path: Path) -> None:
    with module.closing_descriptor(module.lock_folder(tmp_path)), pytest.raises(BlockingIOError):
        module.lock_folder(tmp_path)


def test_file_size_limit_is_treated_like_a_full_disk(store: AdapterVersionStore) -> None:
    """Simulate a full disk by the file size limit of the process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            add_version(store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (list_stored_versions(store.folder), list_incomplete_downloads(store.folder)) == (set(), [])


# -- mutated adapters


def mutate_config(content: bytes, random: Random) -> bytes:
    position = random.randrange(len(content))
    return random.choice([
        content[:position], content[:position] + random.randbytes(3) + content[position + 3:], content * 2, b"",
        content[:position] + b"\0" + content[position:], b"[" * 5000, json.dumps({"peft_type": random.choice(
            ["lora", "IA3", None, 5, ["LORA"], {}])}).encode()])


def try_to_publish(store: AdapterVersionStore, files: dict[str, bytes]) -> str:
    """Return the digest, or the kind of the rejection."""
    try:
        with convert_errors_to_adapter_error("the adapter"), store.create_incoming_folder() as incoming:
            return store.publish_version(write_files(incoming.folder, files)).digest
    except AdapterError as refused:
        return refused.kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["config", *MUTATION_KINDS])
def test_mutated_adapter_is_rejected_and_leaves_no_files(store: AdapterVersionStore, kind: str) -> None:
    """Try 2,000 mutations in all. An accepted adapter's header fits its bytes, and its config is one of LoRA."""
    num_refused, files = 0, make_adapter_files()
    for seed in range(118):
        random = Random(f"{kind} {seed}")
        changed = ({CONFIG_FILE: mutate_config(files[CONFIG_FILE], random)} if kind == "config"
                   else {WEIGHTS_FILE: mutate_file(files[WEIGHTS_FILE], kind, random).content})
        before = list_stored_versions(store.folder)
        outcome = try_to_publish(store, files | changed)
        num_refused += outcome == "invalid"
        assert outcome == "invalid" or compute_digest(store.folder / "versions" / outcome) == outcome
        assert list_stored_versions(store.folder) == before | {outcome} - {"invalid"}
        assert list_incomplete_downloads(store.folder) == []
    assert num_refused > {"flip": 100, "reshape": 90, "rename": 80, "add": 60}.get(kind, 110)
