"""Tests of transferring one file: it is resumed, checked, and stored whole or not at all."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.servers.fake_hub import COMMIT, FakeHub

from launcher.hub.cache import CachedRepository
from launcher.hub.client import HubClient, RemoteFile, ServerUnreachableError
from launcher.hub.file_download import DownloadError, FileDownloader
from launcher.hub.retry_policy import RetryPolicy

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
FILES = {CONFIG_FILE: b'{"a": 1}', WEIGHTS_FILE: bytes(range(256)) * 4000}
WEIGHTS_BYTES = len(FILES[WEIGHTS_FILE])


class FileDownloadHarness:
    """Fake Hub, a cache, and a transfer between them that retries without pauses."""

    def __init__(self, fake_hub: FakeHub, folder: Path) -> None:
        self.fake_hub, self.cached_repository = fake_hub, CachedRepository(folder, "org/name")
        self.cached_repository.create_blobs_folder()
        self.byte_counts: list[int] = []
        self.messages: list[str] = []
        self.stop_event = Event()
        hub = HubClient(fake_hub.url, "org/name", "", "weft/1")
        self.downloader = FileDownloader(hub, self.cached_repository, COMMIT, self.stop_event, self.make_retry_policy,
                                         pytest.fail, self.byte_counts.append)

    def make_retry_policy(self) -> RetryPolicy:
        return RetryPolicy(self.stop_event, self.messages.append, (0.0, 0.0))

    def get_remote_file(self, name: str = WEIGHTS_FILE) -> RemoteFile:
        return self.downloader.hub_client.fetch_file_metadata(name, COMMIT)

    def download_file(self, name: str = WEIGHTS_FILE) -> bytes:
        file = self.get_remote_file(name)
        self.downloader.download_file(file)
        return self.cached_repository.get_blob_path(file.etag).read_bytes()

    def get_partial_file_path(self, name: str = WEIGHTS_FILE) -> Path:
        return self.cached_repository.get_partial_blob_path(self.fake_hub.compute_etag(name))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileDownloadHarness]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(FILES) as fake:
        yield FileDownloadHarness(fake, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_file_arrives_whole_and_every_byte_is_counted(harness: FileDownloadHarness, name: str) -> None:
    assert harness.download_file(name) == FILES[name]
    assert sum(harness.byte_counts) == len(FILES[name])
    assert not harness.get_partial_file_path(name).exists()


def test_present_file_is_not_requested(harness: FileDownloadHarness) -> None:
    harness.download_file()
    harness.fake_hub.received_requests.clear()
    harness.download_file()
    assert harness.fake_hub.count_requests("GET") == 0


def test_cut_connection_is_resumed(harness: FileDownloadHarness) -> None:
    harness.fake_hub.cut_after_bytes[WEIGHTS_FILE] = 1000
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert harness.fake_hub.count_requests("/store", "bytes=1000-") == 1
    assert sum(harness.byte_counts) == WEIGHTS_BYTES
    assert f"sent 1,000 of {WEIGHTS_BYTES:,} bytes of {WEIGHTS_FILE}; trying again" in harness.messages[0]


def test_silent_connection_is_resumed(
        harness: FileDownloadHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.fake_hub.stall_after_bytes[WEIGHTS_FILE] = 1000
    monkeypatch.setattr("launcher.hub.client.TIMEOUT_SECONDS", 0.1)
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert harness.fake_hub.count_requests("/store", "bytes=1000-") == 1
    assert "timed out; trying again" in harness.messages[0]


def test_next_start_resumes_a_partial_file(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(FILES[WEIGHTS_FILE][:5000])
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert (harness.fake_hub.count_requests("/store", "bytes=5000-") == harness.fake_hub.count_requests("GET", "/store")
            == 1)
    assert sum(harness.byte_counts) == WEIGHTS_BYTES - 5000


def test_complete_partial_file_needs_no_bytes(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(FILES[WEIGHTS_FILE])
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert harness.fake_hub.count_requests("GET") == 0


def test_storage_without_ranges_sends_all_again(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(FILES[WEIGHTS_FILE][:5000])
    harness.fake_hub.supports_ranges = False
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert sum(harness.byte_counts) == WEIGHTS_BYTES - 5000


def test_too_long_partial_file_is_discarded(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(b"x" * (WEIGHTS_BYTES + 1))
    assert harness.download_file() == FILES[WEIGHTS_FILE]
    assert sum(harness.byte_counts) == 0  # it was counted as there from the start


def test_blob_of_the_wrong_size_is_replaced(harness: FileDownloadHarness) -> None:
    harness.cached_repository.get_blob_path(harness.fake_hub.compute_etag(WEIGHTS_FILE)).write_bytes(b"half")
    assert harness.download_file() == FILES[WEIGHTS_FILE]


@pytest.mark.parametrize(("name", "kind"), [(WEIGHTS_FILE, "sha256"), (CONFIG_FILE, "sha1")])
def test_damaged_file_is_reported_and_removed(harness: FileDownloadHarness, name: str, kind: str) -> None:
    harness.fake_hub.corrupted_files.add(name)
    wrong = getattr(hashlib, kind)(b"").name
    with pytest.raises(DownloadError, match=f"{name} of org/name arrived damaged .{wrong} .* instead of "
                       f"{harness.fake_hub.compute_etag(name)}. and was removed; start again"):
        harness.download_file(name)
    assert list(harness.cached_repository.folder.glob("blobs/*")) == []


def test_earlier_damage_is_found_and_repaired_by_the_next_start(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match="arrived damaged"):
        harness.download_file()
    assert harness.download_file() == FILES[WEIGHTS_FILE]


def test_file_without_a_checksum_is_checked_by_size(harness: FileDownloadHarness) -> None:
    file = RemoteFile(WEIGHTS_FILE, "of-another-hub", WEIGHTS_BYTES)
    harness.downloader.download_file(file)
    assert harness.cached_repository.get_blob_path("of-another-hub").read_bytes() == FILES[WEIGHTS_FILE]
    with pytest.raises(DownloadError, match=rf"arrived damaged \({WEIGHTS_BYTES:,} bytes instead of 9\)"):
        harness.downloader.download_file(RemoteFile(WEIGHTS_FILE, "shorter", 9))


def test_temporary_hub_errors_are_retried(harness: FileDownloadHarness) -> None:
    file = harness.get_remote_file()
    harness.fake_hub.scripted_answers.extend([500, 429])
    harness.downloader.download_file(file)
    assert [text.partition("answers ")[2] for text in harness.messages] == [
        "500 Internal Server Error; trying again in 0 s", "429 asks for fewer requests; trying again in 0 s"]


def test_persistent_hub_error_is_reported_and_the_partial_file_kept(harness: FileDownloadHarness) -> None:
    file = harness.get_remote_file()
    harness.get_partial_file_path().write_bytes(FILES[WEIGHTS_FILE][:5000])
    harness.fake_hub.scripted_answers.extend([503] * 9)
    with pytest.raises(ServerUnreachableError, match=r"answers 503 Service Unavailable$"):
        harness.downloader.download_file(file)
    assert harness.get_partial_file_path().stat().st_size == 5000


def test_stopped_transfer_keeps_the_partial_file(harness: FileDownloadHarness) -> None:
    harness.get_partial_file_path().write_bytes(FILES[WEIGHTS_FILE][:5000])
    harness.stop_event.set()
    with pytest.raises(DownloadError, match=f"{WEIGHTS_FILE} was stopped"):
        harness.download_file()
    assert harness.get_partial_file_path().stat().st_size == 5000
