"""Tests of the runtime folder of a server: folders left by dead launchers are removed, and nothing else."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.supervisor.runtime_dir import clear_left, held, server_folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_lasts_as_long_as_its_server(place: Path) -> None:
    with server_folder() as folder:
        assert Path(folder).parent == place
        Path(folder, "shard-0.sock").touch()
    assert not list(place.iterdir())


def test_a_folder_whose_launcher_was_killed_is_cleared_by_the_next(place: Path) -> None:
    left = place / "weft-left_1ab"
    left.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(left / "shard-0.sock"))
    (left / "meeting-1").touch()
    with server_folder() as folder:
        assert [str(path) for path in place.iterdir()] == [folder]


def test_a_folder_that_is_held_stays(place: Path) -> None:
    with server_folder() as folder, server_folder() as other:
        assert Path(folder).exists()
        assert Path(other).exists()


@pytest.mark.parametrize("name", ["weft-notes", "weft-elsewhere-1", "other-12345678"])
def test_what_others_call_alike_stays(place: Path, name: str) -> None:
    (place / name).mkdir()
    clear_left(place)
    assert (place / name).exists()


def test_a_folder_with_files_of_somebody_stays(place: Path) -> None:
    (place / "weft-abcdefgh").mkdir()
    (place / "weft-abcdefgh" / "letter").touch()
    clear_left(place)
    assert (place / "weft-abcdefgh" / "letter").exists()


def test_links_are_not_followed(place: Path) -> None:
    (place / "elsewhere").mkdir()
    (place / "weft-abcdefgh").symlink_to(place / "elsewhere")
    clear_left(place)
    assert os.path.lexists(place / "weft-abcdefgh")


def test_a_folder_that_was_cleared_in_the_last_moment_is_not_held(place: Path) -> None:
    with held(str(place / "weft-abcdefgh")) as there:
        assert not there
