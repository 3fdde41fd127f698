"""Tests of whole downloads from a fake Hub: the files downloaded, retries and errors."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.servers.fake_hub import COMMIT, FakeHub

from launcher.hub.client import ServerUnreachableError
from launcher.hub.download_display import DownloadDisplay
from launcher.hub.download_runner import DownloadRequest
from launcher.hub.file_download import DownloadError
from launcher.hub.model_download import ModelDownload
from launcher.hub.resolve import ModelNotCachedError, ResolvedModel, find_model

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
NEEDED_FILES = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', WEIGHTS_FILE: bytes(100_000),
                "LICENSE.txt": b"Apache"}
OTHER_FILES = {"README.md": b"read", "modeling.py": b"run", "pytorch_model.bin": b"pickle",
               "consolidated.safetensors": b"2", "onnx/model.onnx": b"3"}
WEIGHT_PARTS = {"model-1.safetensors": b"one", "model-2.safetensors": b"two"}
OTHER_COMMIT = "f" * 40


class DownloadHarness:
    """Fake Hub, an empty cache, and downloads that retry without pauses."""

    def __init__(self, fake_hub: FakeHub, cache: Path) -> None:
        self.fake_hub, self.cache = fake_hub, cache
        self.output = StringIO()

    def run_download(self, name: str = "org/name", revision: str = "main", *, token: str = "",
                     stream: StringIO | None = None) -> str:
        screen = DownloadDisplay(stream or self.output, lambda: 0.0, hides_progress=False)
        request = DownloadRequest(name, revision, str(self.cache), self.fake_hub.url, "weft/1")
        ModelDownload(request, token, screen, lambda: 0.0, pauses=(0.0, 0.0)).download_model()
        return (stream or self.output).getvalue()

    def find_downloaded_model(self, revision: str = "main") -> ResolvedModel:
        return find_model("org/name", revision, self.cache)

    def read_files(self, revision: str = "main") -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(self.find_downloaded_model(revision).folder).iterdir()}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DownloadHarness]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(NEEDED_FILES | OTHER_FILES) as fake:
        yield DownloadHarness(fake, tmp_path / "hub")


def use_weights_index(fake_hub: FakeHub, weight_map: Any) -> None:
    del fake_hub.files[WEIGHTS_FILE]
    fake_hub.files |= WEIGHT_PARTS | {INDEX_FILE: json.dumps({"weight_map": weight_map}).encode()}


# -- downloads


def test_needed_files_are_downloaded_and_found(harness: DownloadHarness) -> None:
    assert harness.run_download() == ("weft: downloading org/name: 0 %, 0 B of 100.0 kB\n"
                                      "weft: org/name is here: commit 01234567, 4 files, 100.0 kB, 0 s\n")
    assert harness.read_files() == NEEDED_FILES
    assert harness.find_downloaded_model(COMMIT) == harness.find_downloaded_model()


def test_pooling_config_is_downloaded_from_its_folder(harness: DownloadHarness) -> None:
    harness.fake_hub.files |= {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "2_Dense/config.json": b"{}"}
    harness.run_download()
    folder = Path(harness.find_downloaded_model().folder)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.json")} == {
        "config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"}


def test_weights_named_by_the_index_are_downloaded(harness: DownloadHarness) -> None:
    use_weights_index(harness.fake_hub,
                      {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"})
    harness.run_download()
    assert set(harness.read_files()) == set(NEEDED_FILES) - {WEIGHTS_FILE} | set(WEIGHT_PARTS) | {INDEX_FILE}


def test_commit_can_be_downloaded_by_name(harness: DownloadHarness) -> None:
    harness.run_download(revision=COMMIT)
    assert harness.read_files(COMMIT) == NEEDED_FILES
    with pytest.raises(ModelNotCachedError):
        harness.find_downloaded_model("main")


def test_changed_files_of_a_branch_are_downloaded_and_others_kept(harness: DownloadHarness) -> None:
    harness.run_download()
    harness.fake_hub.refs = {"main": OTHER_COMMIT, OTHER_COMMIT: OTHER_COMMIT}
    harness.fake_hub.files = NEEDED_FILES | {"config.json": b"new"}
    harness.fake_hub.received_requests.clear()
    harness.run_download()
    assert (harness.read_files()["config.json"], harness.read_files(COMMIT)["config.json"]) == (b"new", b"{}")
    assert [request.path for request in harness.fake_hub.received_requests if request.path.startswith("/store")] == []


def test_same_content_under_two_names_is_downloaded_once(harness: DownloadHarness) -> None:
    harness.fake_hub.files["LICENSE"] = NEEDED_FILES["LICENSE.txt"]
    assert "another process" not in harness.run_download()
    assert harness.read_files()["LICENSE"] == harness.read_files()["LICENSE.txt"]


def test_present_files_are_not_downloaded_again(harness: DownloadHarness) -> None:
    harness.run_download()
    harness.fake_hub.received_requests.clear()
    harness.run_download()
    assert harness.fake_hub.count_requests("GET") == 1  # the request for the commit


# -- failures with a retry or a fallback


def test_interrupted_download_resumes(harness: DownloadHarness) -> None:
    harness.fake_hub.cut_after_bytes[WEIGHTS_FILE] = 60_000
    assert "sent 60,000 of 100,000 bytes of model.safetensors; trying again" in harness.run_download()
    assert harness.fake_hub.count_requests("/store", "bytes=60000-") == 1
    assert harness.read_files() == NEEDED_FILES


def test_temporary_hub_errors_are_retried(harness: DownloadHarness) -> None:
    harness.fake_hub.scripted_answers.extend([500, 503])
    assert "answers 500 Internal Server Error; trying again in 0 s" in harness.run_download()
    assert harness.read_files() == NEEDED_FILES


def test_cached_model_is_used_with_a_warning_without_the_hub(harness: DownloadHarness) -> None:
    harness.run_download()
    harness.fake_hub.scripted_answers.extend([503] * 9)
    assert "warning: the Hub at http://" in (output := harness.run_download())
    assert output.endswith("org/name stays as it is in the cache, which may be outdated\n")


def test_incomplete_cached_model_is_an_error_without_the_hub(harness: DownloadHarness) -> None:
    harness.run_download()
    (Path(harness.find_downloaded_model().folder) / WEIGHTS_FILE).unlink()
    harness.fake_hub.scripted_answers.extend([503] * 9)
    with pytest.raises(ServerUnreachableError, match="answers 503"):
        harness.run_download()


class HubReleasingStream(StringIO):
    """Stream that releases a stalled Hub when a download reports that it waits for another process."""

    def __init__(self, is_stopping: threading.Event) -> None:
        super().__init__()
        self._is_stopping = is_stopping

    def write(self, text: str) -> int:
        if "another process" in text:
            self._is_stopping.set()
        return super().write(text)


def test_concurrent_downloads_transfer_everything_once(harness: DownloadHarness) -> None:
    harness.fake_hub.stall_after_bytes[WEIGHTS_FILE] = 1000
    first = threading.Thread(target=harness.run_download)
    first.start()
    assert harness.fake_hub.stall_started.wait(10)
    output = harness.run_download(stream=HubReleasingStream(harness.fake_hub.is_stopping))
    first.join()
    assert output.count("another process downloads org/name; waiting for it") == 1
    assert (harness.fake_hub.count_requests("GET", "/store")
            == harness.fake_hub.count_requests("GET", "/store", "bytes=1000-") + 1 == 2)
    assert harness.read_files() == NEEDED_FILES


# -- errors


def make_file_remover(*names: str) -> Callable[[FakeHub], None]:
    def remove(fake_hub: FakeHub) -> None:
        for name in names:
            del fake_hub.files[name]
    return remove


def require_gate_token(fake_hub: FakeHub) -> None:
    fake_hub.gated_token = "hf_ours"


REJECTION_CASES = {
    "no configuration": (make_file_remover("config.json"), "org/name at http://.* has no config.json"),
    "no tokenizer": (make_file_remover("tokenizer.json"), "org/name at http://.* has no tokenizer.json"),
    "pickled weights": (make_file_remover(WEIGHTS_FILE, "consolidated.safetensors"),
                        r"only in pickled form \(pytorch_model.bin\)"),
    "weights of another kind": (make_file_remover(WEIGHTS_FILE), "org/name at http://.* has no model.safetensors$"),
    "an index too long": (lambda fake: use_weights_index(fake, {"a": "x.safetensors"}),
                          "org/name at .* has no x.safetensors$"),
    "an index that climbs": (lambda fake: use_weights_index(fake, {"a": "../../x"}), "org/name at .* has no ../../x$"),
    "an empty index": (lambda fake: use_weights_index(fake, {}),
                       "has no file of weights that its model.safetensors.index.json"),
    "a broken index": (lambda fake: use_weights_index(fake, 5),
                       "has no file of weights that its model.safetensors.index.json"),
    "a gate": (require_gate_token, "org/name is gated: ask for access at http://.*/org/name, and set HF_TOKEN"),
}


@pytest.mark.parametrize("cause", REJECTION_CASES)
def test_unservable_model_is_rejected_before_its_weights_are_downloaded(harness: DownloadHarness, cause: str) -> None:
    change, line = REJECTION_CASES[cause]
    change(harness.fake_hub)
    with pytest.raises(ValueError, match=line):
        harness.run_download()
    assert harness.fake_hub.count_requests("GET", "/store") == 0


def test_file_too_large_for_http_is_reported(harness: DownloadHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.hub.model_download.MAX_FILE_BYTES", 50_000)
    with pytest.raises(ValueError, match=r"model.safetensors has 100.0 kB, and the Hub sends no file above 50.0 kB"):
        harness.run_download()


@pytest.mark.parametrize(("name", "revision", "line"), [
    ("org/other", "main", "there is no model org/other at http://"),
    ("org/name", "v9", "org/name has no revision v9"),
])
def test_missing_repository_or_revision_is_reported(harness: DownloadHarness, name: str, revision: str,
                                                    line: str) -> None:
    with pytest.raises(ValueError, match=line):
        harness.run_download(name, revision)


def test_gated_model_needs_the_right_token(harness: DownloadHarness) -> None:
    require_gate_token(harness.fake_hub)
    with pytest.raises(ValueError, match="the account of the token that is set does not have it"):
        harness.run_download(token="hf_other")
    harness.run_download(token="hf_ours")
    assert harness.read_files() == NEEDED_FILES


def test_damaged_file_is_reported_and_nothing_published(harness: DownloadHarness) -> None:
    harness.fake_hub.corrupted_files.add(WEIGHTS_FILE)
    with pytest.raises(DownloadError, match=r"model.safetensors of org/name arrived damaged \(sha256"):
        harness.run_download()
    with pytest.raises(ModelNotCachedError):
        harness.find_downloaded_model()
    harness.fake_hub.corrupted_files.clear()
    harness.run_download()
    assert harness.read_files() == NEEDED_FILES


def test_too_small_disk_is_reported_before_a_download(
        harness: DownloadHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(DownloadError, match="the disk is too small: 100.0 kB are to be downloaded, and 5.0 kB are free "
                       f"where the cache is, {harness.cache}; make room, or set HF_HOME"):
        harness.run_download()
    assert harness.fake_hub.count_requests("GET", "/store") == 0


def test_full_disk_is_reported_and_the_download_resumes_later(
        harness: DownloadHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(DownloadError, match=f"cannot write to the cache, {harness.cache}: No space left on device"):
        harness.run_download()
    monkeypatch.undo()
    harness.run_download()
    assert harness.read_files() == NEEDED_FILES


def test_unwritable_cache_is_reported(harness: DownloadHarness) -> None:
    harness.cache.write_text("a file")
    with pytest.raises(DownloadError,
                       match=f"cannot write to the cache, {harness.cache}/.*: Not a directory; set HF_H"):
        harness.run_download()


# -- other clients of the Hub


def download_with_huggingface_hub(harness: DownloadHarness, **options: Any) -> str:
    """Return the folder of the model according to `huggingface_hub`."""
    program = "import json, sys, huggingface_hub; print(huggingface_hub.snapshot_download(**json.loads(sys.argv[1])))"
    arguments = {"repo_id": "org/name", "cache_dir": str(harness.cache), "endpoint": harness.fake_hub.url, **options}
    variables = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_ENDPOINT": harness.fake_hub.url}
    return subprocess.run([sys.executable, "-P", "-c", program, json.dumps(arguments)], env=os.environ | variables,
                          capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_huggingface_hub_finds_our_download(harness: DownloadHarness) -> None:
    harness.run_download()
    assert download_with_huggingface_hub(harness, local_files_only=True) == harness.find_downloaded_model().folder


@pytest.mark.slow
def test_download_of_huggingface_hub_is_found_and_completed(harness: DownloadHarness) -> None:
    folder = download_with_huggingface_hub(harness, allow_patterns=["*.json", WEIGHTS_FILE])
    assert harness.find_downloaded_model().folder == folder
    harness.fake_hub.received_requests.clear()
    harness.run_download()
    assert [request.path.rpartition("/")[2] for request in harness.fake_hub.received_requests
            if request.method == "GET"] == ["main", "LICENSE.txt", "LICENSE.txt"]
