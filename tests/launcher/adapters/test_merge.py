"""Tests of merging adapters with a scripted program: each merge runs once, one at a time, and ends with the store."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.adapter_files import adapter_files, kept, left_over, write

from launcher.adapters import merge as module
from launcher.adapters.errors import Refused
from launcher.adapters.merge import Merging
from launcher.adapters.protocol import Merge
from launcher.adapters.store import Store, Version

pytestmark = pytest.mark.slow

# Copies the first adapter's weights and writes the merge weights into its config, or fails as the strategy demands.
SCRIPT = """
import json, os, sys, shutil, time
asked = json.loads(sys.argv[1])
into, strategy = asked.pop("into"), asked["strategy"]
assert os.listdir(into) == []
with open(os.path.join(os.path.dirname(os.path.dirname(into)), "calls"), "a") as calls:
    calls.write(json.dumps(asked) + chr(10))
shutil.copy(asked["folders"][0] + "/adapter_model.safetensors", into)
if strategy == "fail":
    sys.exit("Traceback" + chr(10) + "the adapters have different ranks")
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
LONGEST = 60.0  # seconds


class Bench:
    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "store", 10**9)
        self.merging = self.make()
        self.parts = [self.put(seed) for seed in (1, 2)]

    def make(self) -> Merging:
        return Merging(self.store, (sys.executable, "-S", "-c", SCRIPT))

    def close(self) -> None:
        self.merging.close()
        self.store.close()

    def put(self, seed: int) -> Version:
        with self.store.incoming() as incoming:
            return self.store.publish(write(incoming.folder, adapter_files(seed)))

    def start(self, strategy: str = "linear", *weights: float) -> Future[Version]:
        digests = tuple(part.digest for part in self.parts)
        return self.merging.start(Merge(digests, weights or (1.0, 0.5), strategy, 0.5, "total"))

    def merge(self, strategy: str = "linear", *weights: float) -> Version:
        return self.start(strategy, *weights).result(LONGEST)

    def refusal(self, strategy: str) -> Refused:
        with pytest.raises(Refused) as refused:
            self.merge(strategy)
        assert left_over(self.store.folder) == []
        return refused.value

    def calls(self) -> list[dict[str, Any]]:
        path = self.store.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def test_a_merge_is_a_version_like_any_other(bench: Bench) -> None:
    version = bench.merge()
    assert bench.store.find(version.digest) == version
    assert json.loads((version.folder / "adapter_config.json").read_text())["weights"] == [1.0, 0.5]
    assert left_over(bench.store.folder) == []


def test_the_program_is_told_everything(bench: Bench) -> None:
    bench.merge()
    [asked] = bench.calls()
    seed = asked.pop("seed")
    assert asked == {"folders": [str(part.folder) for part in bench.parts], "weights": [1.0, 0.5],
                     "strategy": "linear", "density": 0.5, "sign": "total"}
    assert 0 <= seed < 2**64


def test_what_was_merged_is_not_merged_again_not_even_after_a_restart(bench: Bench) -> None:
    version = bench.merge()
    assert bench.merge() == version
    with closing(bench.make()) as other:
        bench.merging, before = other, bench.merging
        assert bench.merge() == version
        bench.merging = before
    assert len(bench.calls()) == 1
    assert bench.merge("linear", 1.0, 0.6) != version
    assert len({call["seed"] for call in bench.calls()}) == 2


def test_what_is_gone_is_merged_again_and_gives_the_same(bench: Bench) -> None:
    version = bench.merge()
    bench.store._remove(version.digest)
    assert bench.merge() == version
    assert len(bench.calls()) == 2


def test_a_part_that_is_gone_is_told(bench: Bench) -> None:
    bench.store._remove(bench.parts[1].digest)
    refused = bench.refusal("linear")
    assert (refused.kind, "fetch it again" in str(refused), bench.calls()) == ("missing", True, [])


@pytest.mark.parametrize(("strategy", "why"), [
    ("fail", "the adapters could not be merged: the adapters have different ranks"),
    ("silent", "the adapters could not be merged: exit code 1"),
    ("half", "the adapters could not be merged: no adapter_config.json came of it"),
    ("spoil", "the merged adapter cannot be served: adapter_config.json is not JSON"),
])
def test_a_program_that_fails_is_told_and_tried_again(bench: Bench, strategy: str, why: str) -> None:
    before = kept(bench.store.folder)
    assert (str(bench.refusal(strategy)), bench.refusal(strategy).kind) == (why, "invalid")
    assert len(bench.calls()) == 2
    assert kept(bench.store.folder) == before


def test_a_program_that_hangs_is_ended(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_SECONDS", 0.5)
        assert "takes more than 0.5 seconds" in str(bench.refusal("hang"))
    assert bench.merge()


def test_a_program_that_is_not_there_is_told(bench: Bench) -> None:
    bench.merging._command = ("/nowhere/python",)
    assert bench.refusal("linear").kind == "unreachable"


def test_one_is_made_at_a_time_and_the_end_ends_it(bench: Bench) -> None:
    first, second = bench.start("hang"), bench.start()
    while not bench.merging._child:
        assert not first.done()
    bench.merging.kill()
    assert isinstance(first.exception(LONGEST), Refused)
    assert str(second.exception(LONGEST)) == "the server is stopping"


def test_its_parts_stay_while_it_is_made(bench: Bench) -> None:
    """Two adapters fit into the store, so the merged one is rejected while both are being read."""
    bench.store._most = sum(part.contents.bytes for part in bench.parts)
    assert bench.refusal("linear").kind == "no_room"
    assert kept(bench.store.folder) == {part.digest for part in bench.parts}
