"""Tests of merging adapters with a scripted program: each merge runs once, one at a time, and ends with the store."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints.adapter_files import (
    list_incomplete_downloads,
    list_stored_versions,
    make_adapter_files,
    write_files,
)

from launcher.adapters import merge_runner as module
from launcher.adapters.errors import AdapterError
from launcher.adapters.merge_runner import AdapterMergeRunner
from launcher.adapters.store import AdapterVersion, AdapterVersionStore
from launcher.adapters.store_protocol import MergeRequest

pytestmark = pytest.mark.slow

# Copies the first adapter's weights and writes the merge weights into its config, or fails as the strategy demands.
FAKE_MERGE_PROGRAM = """
import json, os, sys, shutil, time
asked = json.loads(sys.argv[1])
into, strategy = asked.pop("into"), asked["strategy"]
assert os.listdir(into) == []
with open(os.path.join(os.path.dirname(os.path.dirname(into)), "calls"), "a") as calls:
    calls.write(json.dumps(asked) + chr(10))
shutil.copy(asked["folders"][0] + "/adapter_model.safetensors", into)
if strategy == "fail":
    sys.exit("Traceback" + chr(10) + "the adapters have different ranks")
if strategy == "ranks":
    first, second = asked["folders"]
    sys.exit(f"different ranks: 8 in {first}, 16 in {second}; {second}/adapter_config.json, {into}; " + first * 9)
if strategy == "silent":
    sys.exit(1)
if strategy == "half":
    sys.exit(0)
if strategy == "hang":
    print("here", file=sys.stderr, flush=True)
    time.sleep(3600)
with open(into + "/adapter_config.json", "w") as config:
    config.write("{" if strategy == "spoil" else json.dumps({"peft_type": "LORA", "weights": asked["weights"]}))
"""
TIMEOUT_SECONDS = 60.0  # seconds


class MergerHarness:
    def __init__(self, folder: Path) -> None:
        self.store = AdapterVersionStore(folder / "store", 10**9)
        self.merger = self.make_merger()
        self.versions = [self.add_version(seed) for seed in (1, 2)]

    def make_merger(self) -> AdapterMergeRunner:
        return AdapterMergeRunner(self.store, (sys.executable, "-S", "-c", FAKE_MERGE_PROGRAM))

    def close(self) -> None:
        self.merger.close()
        self.store.close()

    def add_version(self, seed: int) -> AdapterVersion:
        with self.store.create_incoming_folder() as incoming:
            return self.store.publish_version(write_files(incoming.folder, make_adapter_files(seed)))

    def start(self, strategy: str = "linear", *weights: float) -> Future[AdapterVersion]:
        digests = tuple(part.digest for part in self.versions)
        return self.merger.start_merge(MergeRequest(digests, weights or (1.0, 0.5), strategy, 0.5, "total"))

    def merge(self, strategy: str = "linear", *weights: float) -> AdapterVersion:
        return self.start(strategy, *weights).result(TIMEOUT_SECONDS)

    def expect_error(self, strategy: str) -> AdapterError:
        with pytest.raises(AdapterError) as refused:
            self.merge(strategy)
        assert list_incomplete_downloads(self.store.folder) == []
        return refused.value

    def read_calls(self) -> list[dict[str, Any]]:
        path = self.store.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MergerHarness]:
    with closing(MergerHarness(tmp_path)) as bench:
        yield bench


def test_merged_adapter_is_a_stored_version(harness: MergerHarness) -> None:
    version = harness.merge()
    assert harness.store.find_version(version.digest) == version
    assert json.loads((version.folder / "adapter_config.json").read_text())["weights"] == [1.0, 0.5]
    assert list_incomplete_downloads(harness.store.folder) == []


def test_merge_program_gets_all_parameters(harness: MergerHarness) -> None:
    harness.merge()
    [call] = harness.read_calls()
    seed = call.pop("seed")
    assert call == {"folders": [str(part.folder) for part in harness.versions], "weights": [1.0, 0.5],
                    "strategy": "linear", "density": 0.5, "sign": "total"}
    assert 0 <= seed < 2**64


def test_merge_is_reused_even_after_a_restart(harness: MergerHarness) -> None:
    version = harness.merge()
    assert harness.merge() == version
    with closing(harness.make_merger()) as other:
        harness.merger, first_merger = other, harness.merger
        assert harness.merge() == version
        harness.merger = first_merger
    assert len(harness.read_calls()) == 1
    assert harness.merge("linear", 1.0, 0.6) != version
    assert len({call["seed"] for call in harness.read_calls()}) == 2


def test_removed_merge_is_repeated_with_the_same_result(harness: MergerHarness) -> None:
    version = harness.merge()
    harness.store._delete_version(version.digest)
    assert harness.merge() == version
    assert len(harness.read_calls()) == 2


def test_missing_part_is_reported(harness: MergerHarness) -> None:
    harness.store._delete_version(harness.versions[1].digest)
    refused = harness.expect_error("linear")
    assert (refused.kind, "fetch it again" in str(refused), harness.read_calls()) == ("missing", True, [])


@pytest.mark.parametrize(("strategy", "message"), [
    ("fail", "the adapters could not be merged: the adapters have different ranks"),
    ("silent", "the adapters could not be merged: exit code 1"),
    ("half", "the adapters could not be merged: no adapter_config.json came of it"),
    ("spoil", "the merged adapter cannot be served: adapter_config.json is not JSON"),
])
def test_failing_merge_is_reported_and_retried(harness: MergerHarness, strategy: str, message: str) -> None:
    before = list_stored_versions(harness.store.folder)
    assert (str(harness.expect_error(strategy)), harness.expect_error(strategy).kind) == (message, "invalid")
    assert len(harness.read_calls()) == 2
    assert list_stored_versions(harness.store.folder) == before


def test_error_of_a_merge_has_places_instead_of_folders_which_are_logged(
        harness: MergerHarness, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: clients saw where the server keeps adapters."""
    assert str(harness.expect_error("ranks")) == (
        "the adapters could not be merged: different ranks: 8 in adapter 1, 16 in adapter 2; "
        f"adapter 2/adapter_config.json, the merged adapter; {'adapter 1' * 9}")
    assert f"8 in {harness.versions[0].folder}, 16 in {harness.versions[1].folder}" in caplog.text


def test_hanging_merge_is_killed(harness: MergerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "MERGE_TIMEOUT_SECONDS", 0.5)
        assert "takes more than 0.5 seconds" in str(harness.expect_error("hang"))
    assert harness.merge()


def test_missing_merge_program_is_reported(harness: MergerHarness) -> None:
    harness.merger._merge_command = ("/nowhere/python",)
    assert harness.expect_error("linear").kind == "unreachable"


def test_merges_run_one_at_a_time_and_end_with_the_store(harness: MergerHarness) -> None:
    first, second = harness.start("hang"), harness.start()
    while not harness.merger._child:
        assert not first.done()
    harness.merger.kill_and_refuse_merges()
    assert isinstance(first.exception(TIMEOUT_SECONDS), AdapterError)
    assert str(second.exception(TIMEOUT_SECONDS)) == "the server is stopping"


def test_parts_are_not_evicted_during_a_merge(harness: MergerHarness) -> None:
    """Two adapters fit into the store, so the merged one is rejected while both are being read."""
    harness.store._max_bytes = sum(part.contents.file_bytes for part in harness.versions)
    assert harness.expect_error("linear").kind == "no_room"
    assert list_stored_versions(harness.store.folder) == {part.digest for part in harness.versions}
