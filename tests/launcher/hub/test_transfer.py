"""Tests of transferring one file: it is resumed, checked, and stored whole or not at all."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.fake_hub import COMMIT, FakeHub

from launcher.hub.cache import Kept
from launcher.hub.client import Hub, RemoteFile, Unreachable
from launcher.hub.retry_policy import Patience
from launcher.hub.transfer import NotDownloaded, Transfer

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FILES = {CONFIG: b'{"a": 1}', WEIGHTS: bytes(range(256)) * 4000}
SIZE = len(FILES[WEIGHTS])


class Bench:
    """Fake Hub, a cache, and a transfer between them that retries without pauses."""

    def __init__(self, fake: FakeHub, folder: Path) -> None:
        self.fake, self.kept = fake, Kept(folder, "org/name")
        self.kept.prepare()
        self.counted: list[int] = []
        self.said: list[str] = []
        self.stopped = Event()
        hub = Hub(fake.url, "org/name", "", "weft/1")
        self.transfer = Transfer(hub, self.kept, COMMIT, self.stopped, self.patience, pytest.fail, self.counted.append)

    def patience(self) -> Patience:
        return Patience(self.stopped, self.said.append, (0.0, 0.0))

    def file(self, name: str = WEIGHTS) -> RemoteFile:
        return self.transfer.hub.file(name, COMMIT)

    def bring(self, name: str = WEIGHTS) -> bytes:
        file = self.file(name)
        self.transfer.bring(file)
        return self.kept.blob(file.etag).read_bytes()

    def beginning(self, name: str = WEIGHTS) -> Path:
        return self.kept.beginning(self.fake.etag(name))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(FILES) as fake:
        yield Bench(fake, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_arrives_whole_and_every_byte_is_counted(bench: Bench, name: str) -> None:
    assert bench.bring(name) == FILES[name]
    assert sum(bench.counted) == len(FILES[name])
    assert not bench.beginning(name).exists()


def test_a_file_that_is_here_is_not_asked_for(bench: Bench) -> None:
    bench.bring()
    bench.fake.asked.clear()
    bench.bring()
    assert bench.fake.num_asked("GET") == 0


def test_a_connection_that_is_cut_is_taken_up_where_it_ended(bench: Bench) -> None:
    bench.fake.cuts[WEIGHTS] = 1000
    assert bench.bring() == FILES[WEIGHTS]
    assert bench.fake.num_asked("/store", "bytes=1000-") == 1
    assert sum(bench.counted) == SIZE
    assert f"sent 1,000 of {SIZE:,} bytes of {WEIGHTS}; trying again" in bench.said[0]


def test_a_connection_that_falls_silent_is_taken_up_where_it_ended(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fake.stalls[WEIGHTS] = 1000
    monkeypatch.setattr("launcher.hub.client.TIMEOUT", 0.1)
    assert bench.bring() == FILES[WEIGHTS]
    assert bench.fake.num_asked("/store", "bytes=1000-") == 1
    assert "timed out; trying again" in bench.said[0]


def test_the_next_start_goes_on_where_the_last_one_ended(bench: Bench) -> None:
    bench.beginning().write_bytes(FILES[WEIGHTS][:5000])
    assert bench.bring() == FILES[WEIGHTS]
    assert bench.fake.num_asked("/store", "bytes=5000-") == bench.fake.num_asked("GET", "/store") == 1
    assert sum(bench.counted) == SIZE - 5000


def test_a_start_that_ended_before_the_last_file_was_named_needs_no_bytes(bench: Bench) -> None:
    bench.beginning().write_bytes(FILES[WEIGHTS])
    assert bench.bring() == FILES[WEIGHTS]
    assert bench.fake.num_asked("GET") == 0


def test_a_store_that_cannot_skip_sends_all_again(bench: Bench) -> None:
    bench.beginning().write_bytes(FILES[WEIGHTS][:5000])
    bench.fake.ranges = False
    assert bench.bring() == FILES[WEIGHTS]
    assert sum(bench.counted) == SIZE - 5000


def test_a_beginning_that_is_longer_than_the_file_is_none(bench: Bench) -> None:
    bench.beginning().write_bytes(b"x" * (SIZE + 1))
    assert bench.bring() == FILES[WEIGHTS]
    assert sum(bench.counted) == 0  # it was counted as there from the start


def test_a_file_of_another_size_under_the_right_name_is_replaced(bench: Bench) -> None:
    bench.kept.blob(bench.fake.etag(WEIGHTS)).write_bytes(b"half")
    assert bench.bring() == FILES[WEIGHTS]


@pytest.mark.parametrize(("name", "kind"), [(WEIGHTS, "sha256"), (CONFIG, "sha1")])
def test_a_damaged_file_is_named_and_removed(bench: Bench, name: str, kind: str) -> None:
    bench.fake.damaged.add(name)
    wrong = getattr(hashlib, kind)(b"").name
    with pytest.raises(NotDownloaded, match=f"{name} of org/name arrived damaged .{wrong} .* instead of "
                                            f"{bench.fake.etag(name)}. and was removed; start again"):
        bench.bring(name)
    assert list(bench.kept.folder.glob("blobs/*")) == []


def test_damage_from_an_earlier_start_is_found_and_mended_by_the_next(bench: Bench) -> None:
    bench.beginning().write_bytes(b"x" * 5000)
    with pytest.raises(NotDownloaded, match="arrived damaged"):
        bench.bring()
    assert bench.bring() == FILES[WEIGHTS]


def test_what_no_checksum_names_is_judged_by_its_size(bench: Bench) -> None:
    file = RemoteFile(WEIGHTS, "of-another-hub", SIZE)
    bench.transfer.bring(file)
    assert bench.kept.blob("of-another-hub").read_bytes() == FILES[WEIGHTS]
    with pytest.raises(NotDownloaded, match=rf"arrived damaged \({SIZE:,} bytes instead of 9\)"):
        bench.transfer.bring(RemoteFile(WEIGHTS, "shorter", 9))


def test_a_hub_that_fails_for_a_moment_is_asked_again(bench: Bench) -> None:
    file = bench.file()
    bench.fake.answers.extend([500, 429])
    bench.transfer.bring(file)
    assert [text.partition("answers ")[2] for text in bench.said] == [
        "500 Internal Server Error; trying again in 0 s", "429 asks for fewer requests; trying again in 0 s"]


def test_a_hub_that_goes_on_failing_is_given_up_and_what_came_stays(bench: Bench) -> None:
    file = bench.file()
    bench.beginning().write_bytes(FILES[WEIGHTS][:5000])
    bench.fake.answers.extend([503] * 9)
    with pytest.raises(Unreachable, match=r"answers 503 Service Unavailable$"):
        bench.transfer.bring(file)
    assert bench.beginning().stat().st_size == 5000


def test_a_transfer_that_is_stopped_leaves_what_came(bench: Bench) -> None:
    bench.beginning().write_bytes(FILES[WEIGHTS][:5000])
    bench.stopped.set()
    with pytest.raises(NotDownloaded, match=f"{WEIGHTS} was stopped"):
        bench.bring()
    assert bench.beginning().stat().st_size == 5000
