"""Tests of the Hub's cache on disk, in the layout that other clients of the Hub read and write."""

import os
import threading
from pathlib import Path

import pytest

from launcher.hub.cache import CachedRepository, lock_file

COMMIT, OTHER_COMMIT = "0" * 40, "1" * 40


@pytest.fixture
def cached_repository(tmp_path: Path) -> CachedRepository:
    repository = CachedRepository(tmp_path, "org/name")
    repository.create_blobs_folder()
    return repository


def add_blob(cached_repository: CachedRepository, etag: str, content: str = "abc") -> CachedRepository:
    cached_repository.get_blob_path(etag).write_text(content)
    return cached_repository


def test_published_commit_is_found_by_branch_and_commit(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"config.json": "e1"}, "main")
    assert (cached_repository.get_snapshot_folder("main") == cached_repository.get_snapshot_folder(COMMIT)
            == cached_repository.folder / "snapshots" / COMMIT)
    assert (cached_repository.get_snapshot_folder("main") / "config.json").read_text() == "abc"
    assert (cached_repository.folder / "refs" / "main").read_text() == COMMIT


def test_links_are_relative(cached_repository: CachedRepository, tmp_path: Path) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"config.json": "e1"}, "main")
    assert os.readlink(cached_repository.get_snapshot_folder("main") / "config.json") == "../../blobs/e1"


def test_file_may_be_in_a_subfolder(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"1_Pooling/config.json": "e1"}, "main")
    link = cached_repository.get_snapshot_folder("main") / "1_Pooling" / "config.json"
    assert os.readlink(link) == "../../../blobs/e1"
    assert link.read_text() == "abc"


def test_moved_branch_keeps_the_old_commit(cached_repository: CachedRepository) -> None:
    for commit, etag in ((COMMIT, "e1"), (OTHER_COMMIT, "e2")):
        add_blob(cached_repository, etag, commit).publish_snapshot(commit, {"config.json": etag}, "main")
    assert (cached_repository.get_snapshot_folder("main") / "config.json").read_text() == OTHER_COMMIT
    assert (cached_repository.get_snapshot_folder(COMMIT) / "config.json").read_text() == COMMIT


def test_commit_requested_by_name_writes_no_ref(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"config.json": "e1"}, COMMIT)
    assert not (cached_repository.folder / "refs").exists()


def test_ref_may_contain_folders(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"config.json": "e1"}, "refs/pr/1")
    assert cached_repository.resolve_commit("refs/pr/1") == COMMIT


def test_broken_links_are_replaced_and_others_kept(cached_repository: CachedRepository) -> None:
    (folder := cached_repository.get_snapshot_folder(COMMIT)).mkdir(parents=True)
    (folder / "lost").symlink_to("../../blobs/cleared")
    (folder / "kept").write_text("here")
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"lost": "e1", "kept": "e1"}, COMMIT)
    assert ((folder / "lost").read_text(), (folder / "kept").read_text()) == ("abc", "here")


def test_republishing_writes_nothing(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1").publish_snapshot(COMMIT, {"config.json": "e1"}, "main")
    times = [path.stat(follow_symlinks=False).st_mtime_ns for path in sorted(cached_repository.folder.rglob("*"))]
    cached_repository.publish_snapshot(COMMIT, {"config.json": "e1"}, "main")
    assert [path.stat(follow_symlinks=False).st_mtime_ns
            for path in sorted(cached_repository.folder.rglob("*"))] == times


def test_blob_counts_only_with_the_right_size(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "e1")
    assert (cached_repository.has_blob("e1", 3), cached_repository.has_blob("e1", 4),
            cached_repository.has_blob("e2", 3)) == (True, False, False)


def test_downloaded_bytes_are_of_the_blob_or_its_partial_file(cached_repository: CachedRepository) -> None:
    add_blob(cached_repository, "whole").get_partial_blob_path("part").write_text("ab")
    assert [cached_repository.count_downloaded_bytes(etag, 3) for etag in ("whole", "part", "none")] == [3, 2, 0]
    assert cached_repository.count_downloaded_bytes("part", 1) == 1


def test_downloads_of_one_file_exclude_each_other(cached_repository: CachedRepository) -> None:
    waiting, order = threading.Event(), []

    def lock_second() -> None:
        with cached_repository.lock_blob("e1", waiting.set):
            order.append("second")

    thread = threading.Thread(target=lock_second)
    with cached_repository.lock_blob("e1", lambda: None):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_downloads_of_different_files_run_concurrently(cached_repository: CachedRepository) -> None:
    with cached_repository.lock_blob("e1", lambda: None), cached_repository.lock_blob("e2", pytest.fail):
        pass


def test_removed_lock_file_is_not_a_lock(tmp_path: Path) -> None:
    path, waiting = tmp_path / "lock", threading.Event()
    first = lock_file(path, pytest.fail)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(lock_file(path, waiting.set)))
    thread.start()
    assert waiting.wait(10)
    path.unlink()
    os.close(first)
    thread.join()
    assert os.fstat(got[0]).st_ino == path.stat().st_ino
    os.close(got[0])
