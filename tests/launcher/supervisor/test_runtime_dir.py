"""Tests of the runtime folder of a server: folders left by dead launchers are removed, and nothing else."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.supervisor.runtime_dir import create_runtime_folder, lock_runtime_folder, remove_abandoned_folders


@pytest.fixture
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_folder_lasts_as_long_as_its_server(temporary_folder: Path) -> None:
    with create_runtime_folder() as folder:
        assert Path(folder).parent == temporary_folder
        Path(folder, "shard-0.sock").touch()
    assert not list(temporary_folder.iterdir())


def test_only_the_user_may_enter_the_folder(temporary_folder: Path) -> None:
    with create_runtime_folder() as folder:
        assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_folder_of_a_killed_launcher_is_removed_by_the_next(temporary_folder: Path) -> None:
    left = temporary_folder / "weft-left_1ab"
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left / "shard-0.sock"))
    (left / "meeting-1").touch()
    with create_runtime_folder() as folder:
        assert [str(path) for path in temporary_folder.iterdir()] == [folder]


def test_locked_folder_is_kept(temporary_folder: Path) -> None:
    with create_runtime_folder() as folder, create_runtime_folder() as other:
        assert Path(folder).exists()
        assert Path(other).exists()


@pytest.mark.parametrize("name", ["weft-notes", "weft-elsewhere-1", "other-12345678"])
def test_folders_with_similar_names_are_kept(temporary_folder: Path, name: str) -> None:
    (temporary_folder / name).mkdir()
    remove_abandoned_folders(temporary_folder)
    assert (temporary_folder / name).exists()


def test_folder_with_foreign_files_is_kept(temporary_folder: Path) -> None:
    (temporary_folder / "weft-abcdefgh").mkdir()
    (temporary_folder / "weft-abcdefgh" / "letter").touch()
    remove_abandoned_folders(temporary_folder)
    assert (temporary_folder / "weft-abcdefgh" / "letter").exists()


def test_links_are_not_followed(temporary_folder: Path) -> None:
    (temporary_folder / "elsewhere").mkdir()
    (temporary_folder / "weft-abcdefgh").symlink_to(temporary_folder / "elsewhere")
    remove_abandoned_folders(temporary_folder)
    assert os.path.lexists(temporary_folder / "weft-abcdefgh")


def test_removed_folder_cannot_be_locked(temporary_folder: Path) -> None:
    with lock_runtime_folder(str(temporary_folder / "weft-abcdefgh")) as is_locked:
        assert not is_locked
