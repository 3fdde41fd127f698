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
from support.fake_hub import COMMIT, FakeHub

from launcher.hub.client import Unreachable
from launcher.hub.download import Download
from launcher.hub.fetch import Order
from launcher.hub.resolve import Missing, Model, find_model
from launcher.hub.screen import Screen
from launcher.hub.transfer import NotDownloaded

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NEEDED = {"config.json": b"{}", "tokenizer.json": b'{"a": 1}', WEIGHTS: bytes(100_000), "LICENSE.txt": b"Apache"}
OTHERS = {"README.md": b"read", "modeling.py": b"run", "pytorch_model.bin": b"pickle", "consolidated.safetensors": b"2",
          "onnx/model.onnx": b"3"}
PARTS = {"model-1.safetensors": b"one", "model-2.safetensors": b"two"}
OTHER_COMMIT = "f" * 40


class Bench:
    """Fake Hub, an empty cache, and downloads that retry without pauses."""

    def __init__(self, fake: FakeHub, cache: Path) -> None:
        self.fake, self.cache = fake, cache
        self.said = StringIO()

    def run(self, name: str = "org/name", revision: str = "main", *, token: str = "",
            target: StringIO | None = None) -> str:
        screen = Screen(target or self.said, lambda: 0.0, quiet=False)
        order = Order(name, revision, str(self.cache), self.fake.url, "weft/1")
        Download(order, token, screen, lambda: 0.0, pauses=(0.0, 0.0)).run()
        return (target or self.said).getvalue()

    def find(self, revision: str = "main") -> Model:
        return find_model("org/name", revision, self.cache)

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in Path(self.find(revision).folder).iterdir()}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    monkeypatch.setenv("NO_PROXY", "*")
    with FakeHub(NEEDED | OTHERS) as fake:
        yield Bench(fake, tmp_path / "hub")


def indexed(fake: FakeHub, weight_map: Any) -> None:
    del fake.files[WEIGHTS]
    fake.files |= PARTS | {INDEX: json.dumps({"weight_map": weight_map}).encode()}


# -- downloads


def test_what_serving_needs_is_brought_and_found(bench: Bench) -> None:
    assert bench.run() == ("weft: downloading org/name: 0 %, 0 B of 100.0 kB\n"
                           "weft: org/name is here: commit 01234567, 4 files, 100.0 kB, 0 s\n")
    assert bench.files() == NEEDED
    assert bench.find(COMMIT) == bench.find()


def test_how_embeddings_are_made_is_brought_from_its_folder(bench: Bench) -> None:
    bench.fake.files |= {"modules.json": b"[]", "1_Pooling/config.json": b"{}", "2_Dense/config.json": b"{}"}
    bench.run()
    folder = Path(bench.find().folder)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.json")} == {
        "config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"}


def test_the_weights_are_those_that_the_index_names(bench: Bench) -> None:
    indexed(bench.fake, {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"})
    bench.run()
    assert set(bench.files()) == set(NEEDED) - {WEIGHTS} | set(PARTS) | {INDEX}


def test_a_commit_can_be_asked_for_by_its_name(bench: Bench) -> None:
    bench.run(revision=COMMIT)
    assert bench.files(COMMIT) == NEEDED
    with pytest.raises(Missing):
        bench.find("main")


def test_what_is_new_on_a_branch_is_brought_and_the_rest_is_kept(bench: Bench) -> None:
    bench.run()
    bench.fake.refs = {"main": OTHER_COMMIT, OTHER_COMMIT: OTHER_COMMIT}
    bench.fake.files = NEEDED | {"config.json": b"new"}
    bench.fake.asked.clear()
    bench.run()
    assert (bench.files()["config.json"], bench.files(COMMIT)["config.json"]) == (b"new", b"{}")
    assert [asked.path for asked in bench.fake.asked if asked.path.startswith("/store")] == []


def test_two_names_of_the_same_content_are_brought_once(bench: Bench) -> None:
    bench.fake.files["LICENSE"] = NEEDED["LICENSE.txt"]
    assert "another process" not in bench.run()
    assert bench.files()["LICENSE"] == bench.files()["LICENSE.txt"]


def test_what_is_here_is_not_brought_again(bench: Bench) -> None:
    bench.run()
    bench.fake.asked.clear()
    bench.run()
    assert bench.fake.num_asked("GET") == 1  # the request for the commit


# -- failures with a retry or a fallback


def test_a_start_that_was_cut_off_is_gone_on_with(bench: Bench) -> None:
    bench.fake.cuts[WEIGHTS] = 60_000
    assert "sent 60,000 of 100,000 bytes of model.safetensors; trying again" in bench.run()
    assert bench.fake.num_asked("/store", "bytes=60000-") == 1
    assert bench.files() == NEEDED


def test_a_hub_that_fails_for_a_moment_is_asked_again(bench: Bench) -> None:
    bench.fake.answers.extend([500, 503])
    assert "answers 500 Internal Server Error; trying again in 0 s" in bench.run()
    assert bench.files() == NEEDED


def test_without_the_hub_the_model_in_the_cache_is_enough_and_a_warning_tells(bench: Bench) -> None:
    bench.run()
    bench.fake.answers.extend([503] * 9)
    assert "warning: the Hub at http://" in (said := bench.run())
    assert said.endswith("org/name stays as it is in the cache, which may be outdated\n")


def test_without_the_hub_half_a_model_is_not_enough(bench: Bench) -> None:
    bench.run()
    (Path(bench.find().folder) / WEIGHTS).unlink()
    bench.fake.answers.extend([503] * 9)
    with pytest.raises(Unreachable, match="answers 503"):
        bench.run()


class Waiting(StringIO):
    """Stream that releases a stalled Hub when a download reports that it waits for another process."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__()
        self._over = over

    def write(self, text: str) -> int:
        if "another process" in text:
            self._over.set()
        return super().write(text)


def test_two_downloads_at_once_bring_everything_once(bench: Bench) -> None:
    bench.fake.stalls[WEIGHTS] = 1000
    first = threading.Thread(target=bench.run)
    first.start()
    assert bench.fake.stalled.wait(10)
    said = bench.run(target=Waiting(bench.fake.over))
    first.join()
    assert said.count("another process downloads org/name; waiting for it") == 1
    assert bench.fake.num_asked("GET", "/store") == bench.fake.num_asked("GET", "/store", "bytes=1000-") + 1 == 2
    assert bench.files() == NEEDED


# -- errors


def without(*names: str) -> Callable[[FakeHub], None]:
    def remove(fake: FakeHub) -> None:
        for name in names:
            del fake.files[name]
    return remove


def gated(fake: FakeHub) -> None:
    fake.gated_for = "hf_ours"


REFUSALS = {
    "no configuration": (without("config.json"), "org/name at http://.* has no config.json"),
    "no tokenizer": (without("tokenizer.json"), "org/name at http://.* has no tokenizer.json"),
    "pickled weights": (without(WEIGHTS, "consolidated.safetensors"), r"only in pickled form \(pytorch_model.bin\)"),
    "weights of another kind": (without(WEIGHTS), "org/name at http://.* has no model.safetensors$"),
    "an index too long": (lambda fake: indexed(fake, {"a": "x.safetensors"}), "org/name at .* has no x.safetensors$"),
    "an index that climbs": (lambda fake: indexed(fake, {"a": "../../x"}), "org/name at .* has no ../../x$"),
    "an empty index": (lambda fake: indexed(fake, {}), "has no file of weights that its model.safetensors.index.json"),
    "a broken index": (lambda fake: indexed(fake, 5), "has no file of weights that its model.safetensors.index.json"),
    "a gate": (gated, "org/name is gated: ask for access at http://.*/org/name, and set HF_TOKEN"),
}


@pytest.mark.parametrize("cause", REFUSALS)
def test_a_model_that_cannot_be_served_is_refused_before_its_weights_are_brought(bench: Bench, cause: str) -> None:
    change, line = REFUSALS[cause]
    change(bench.fake)
    with pytest.raises(ValueError, match=line):
        bench.run()
    assert bench.fake.num_asked("GET", "/store") == 0


def test_a_file_that_the_hub_does_not_send_over_http_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.hub.download.LARGEST", 50_000)
    with pytest.raises(ValueError, match=r"model.safetensors has 100.0 kB, and the Hub sends no file above 50.0 kB"):
        bench.run()


@pytest.mark.parametrize(("name", "revision", "line"), [
    ("org/other", "main", "there is no model org/other at http://"),
    ("org/name", "v9", "org/name has no revision v9"),
])
def test_what_the_hub_does_not_have_is_told(bench: Bench, name: str, revision: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        bench.run(name, revision)


def test_a_token_opens_the_gate_and_another_is_told(bench: Bench) -> None:
    gated(bench.fake)
    with pytest.raises(ValueError, match="the account of the token that is set does not have it"):
        bench.run(token="hf_other")
    bench.run(token="hf_ours")
    assert bench.files() == NEEDED


def test_a_damaged_file_is_named_and_nothing_is_published(bench: Bench) -> None:
    bench.fake.damaged.add(WEIGHTS)
    with pytest.raises(NotDownloaded, match=r"model.safetensors of org/name arrived damaged \(sha256"):
        bench.run()
    with pytest.raises(Missing):
        bench.find()
    bench.fake.damaged.clear()
    bench.run()
    assert bench.files() == NEEDED


def test_a_disk_that_is_too_small_is_told_before_anything_is_brought(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(NotDownloaded, match="the disk is too small: 100.0 kB are to be downloaded, and 5.0 kB are free "
                                            f"where the cache is, {bench.cache}; make room, or set HF_HOME"):
        bench.run()
    assert bench.fake.num_asked("GET", "/store") == 0


def test_a_disk_that_fills_up_meanwhile_is_told_and_what_came_stays(
        bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotDownloaded, match=f"cannot write to the cache, {bench.cache}: No space left on device"):
        bench.run()
    monkeypatch.undo()
    bench.run()
    assert bench.files() == NEEDED


def test_a_cache_that_cannot_be_written_is_told(bench: Bench) -> None:
    bench.cache.write_text("a file")
    with pytest.raises(NotDownloaded, match=f"cannot write to the cache, {bench.cache}/.*: Not a directory; set HF_H"):
        bench.run()


# -- other clients of the Hub


def with_library(bench: Bench, **options: Any) -> str:
    """Return the folder of the model according to `huggingface_hub`."""
    program = "import json, sys, huggingface_hub; print(huggingface_hub.snapshot_download(**json.loads(sys.argv[1])))"
    order = {"repo_id": "org/name", "cache_dir": str(bench.cache), "endpoint": bench.fake.url, **options}
    variables = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_ENDPOINT": bench.fake.url}
    return subprocess.run([sys.executable, "-P", "-c", program, json.dumps(order)], env=os.environ | variables,
                          capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
def test_the_library_finds_what_we_brought(bench: Bench) -> None:
    bench.run()
    assert with_library(bench, local_files_only=True) == bench.find().folder


@pytest.mark.slow
def test_we_find_what_the_library_brought_and_go_on_from_there(bench: Bench) -> None:
    folder = with_library(bench, allow_patterns=["*.json", WEIGHTS])
    assert bench.find().folder == folder
    bench.fake.asked.clear()
    bench.run()
    assert [asked.path.rpartition("/")[2] for asked in bench.fake.asked if asked.method == "GET"] == [
        "main", "LICENSE.txt", "LICENSE.txt"]
