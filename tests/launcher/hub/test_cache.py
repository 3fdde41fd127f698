"""Tests of the Hub's cache on disk, in the layout that other clients of the Hub read and write."""

import os
import threading
from pathlib import Path

import pytest

from launcher.hub.cache import Kept, lock

COMMIT, OTHER = "0" * 40, "1" * 40


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path, "org/name")
    kept.prepare()
    return kept


def with_blob(kept: Kept, etag: str, content: str = "abc") -> Kept:
    kept.blob(etag).write_text(content)
    return kept


def test_a_published_commit_is_found_by_its_branch_and_by_its_name(kept: Kept) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"config.json": "e1"}, "main")
    assert kept.snapshot("main") == kept.snapshot(COMMIT) == kept.folder / "snapshots" / COMMIT
    assert (kept.snapshot("main") / "config.json").read_text() == "abc"
    assert (kept.folder / "refs" / "main").read_text() == COMMIT


def test_links_are_relative_so_that_a_cache_can_be_moved(kept: Kept, tmp_path: Path) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"config.json": "e1"}, "main")
    assert os.readlink(kept.snapshot("main") / "config.json") == "../../blobs/e1"


def test_a_file_may_lie_in_a_folder(kept: Kept) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"1_Pooling/config.json": "e1"}, "main")
    link = kept.snapshot("main") / "1_Pooling" / "config.json"
    assert os.readlink(link) == "../../../blobs/e1"
    assert link.read_text() == "abc"


def test_a_branch_that_moved_leaves_the_old_commit_where_it_is(kept: Kept) -> None:
    for commit, etag in ((COMMIT, "e1"), (OTHER, "e2")):
        with_blob(kept, etag, commit).publish(commit, {"config.json": etag}, "main")
    assert (kept.snapshot("main") / "config.json").read_text() == OTHER
    assert (kept.snapshot(COMMIT) / "config.json").read_text() == COMMIT


def test_a_commit_asked_for_by_name_needs_no_ref(kept: Kept) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"config.json": "e1"}, COMMIT)
    assert not (kept.folder / "refs").exists()


def test_a_ref_may_have_folders(kept: Kept) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"config.json": "e1"}, "refs/pr/1")
    assert kept.commit("refs/pr/1") == COMMIT


def test_a_link_that_leads_nowhere_is_replaced_and_one_that_leads_somewhere_is_kept(kept: Kept) -> None:
    (folder := kept.snapshot(COMMIT)).mkdir(parents=True)
    (folder / "lost").symlink_to("../../blobs/cleared")
    (folder / "kept").write_text("here")
    with_blob(kept, "e1").publish(COMMIT, {"lost": "e1", "kept": "e1"}, COMMIT)
    assert ((folder / "lost").read_text(), (folder / "kept").read_text()) == ("abc", "here")


def test_publishing_what_is_there_writes_nothing(kept: Kept) -> None:
    with_blob(kept, "e1").publish(COMMIT, {"config.json": "e1"}, "main")
    times = [path.stat(follow_symlinks=False).st_mtime_ns for path in sorted(kept.folder.rglob("*"))]
    kept.publish(COMMIT, {"config.json": "e1"}, "main")
    assert [path.stat(follow_symlinks=False).st_mtime_ns for path in sorted(kept.folder.rglob("*"))] == times


def test_a_blob_counts_when_it_has_the_right_size(kept: Kept) -> None:
    with_blob(kept, "e1")
    assert (kept.has("e1", 3), kept.has("e1", 4), kept.has("e2", 3)) == (True, False, False)


def test_what_came_so_far_is_the_file_or_the_beginning_of_one(kept: Kept) -> None:
    with_blob(kept, "whole").beginning("part").write_text("ab")
    assert [kept.size_so_far(etag, 3) for etag in ("whole", "part", "none")] == [3, 2, 0]
    assert kept.size_so_far("part", 1) == 1


def test_one_at_a_time_downloads_a_file(kept: Kept) -> None:
    waiting, order = threading.Event(), []

    def second() -> None:
        with kept.locked("e1", waiting.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with kept.locked("e1", lambda: None):
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_different_files_are_downloaded_at_once(kept: Kept) -> None:
    with kept.locked("e1", lambda: None), kept.locked("e2", pytest.fail):
        pass


def test_a_lock_that_its_last_holder_removed_is_no_lock(tmp_path: Path) -> None:
    path, waiting = tmp_path / "lock", threading.Event()
    first = lock(path, pytest.fail)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(lock(path, waiting.set)))
    thread.start()
    assert waiting.wait(10)
    path.unlink()
    os.close(first)
    thread.join()
    assert os.fstat(got[0]).st_ino == path.stat().st_ino
    os.close(got[0])
