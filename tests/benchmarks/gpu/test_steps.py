"""Tests of timing a small model's steps, launched and replayed."""

from math import nan

import pytest
from support.replayable_model import replay_on_cpu
from support.small_checkpoints import tiny_checkpoint

from benchmarks.gpu import steps
from benchmarks.gpu.steps import Stage
from shard.config import ShardConfig
from shard.runner.cuda_graphs import Replays
from shard.runner.runner import Runner
from shard.workers.load_decoder import Loaded, load


@pytest.fixture
def loaded(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(steps, "STEPS", 3)
    return load(ShardConfig(model=str(tiny_checkpoint(tmp_path_factory.getbasetemp())), threads=1))


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the steps run, and the steps that began before the previous one ended."""
    found = {"run": 0, "ahead": 0}
    run, begin = Runner.run, Replays.begin

    def counted_run(self, step, cache):  # type: ignore[no-untyped-def]
        found["run"] += 1
        return run(self, step, cache)

    def counted_begin(self, step, cache, behind):  # type: ignore[no-untyped-def]
        found["ahead"] += behind is not None
        return begin(self, step, cache, behind)
    monkeypatch.setattr(Runner, "run", counted_run)
    monkeypatch.setattr(Replays, "begin", counted_begin)
    return found


def test_the_first_time_does_not_count(loaded: Loaded, counts: dict[str, int]) -> None:
    stage = Stage(loaded, 4, 40)
    assert len(stage.decode_seconds(3, 20, 2)) == 2
    assert counts == {"run": 3, "ahead": 0}
    assert len(stage.prompt_seconds([40, 7], 1)) == 1
    assert counts["run"] == 3 + 2


def test_where_steps_are_replayed_each_begins_before_the_last_is_over(
        loaded: Loaded, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    stage = Stage(loaded, 4, 40)
    assert stage.replayed
    assert min(stage.decode_seconds(4, 40, 1)) > 0
    assert counts == {"run": 0, "ahead": 2 * steps.STEPS}


@pytest.mark.parametrize("replayed", [False, True])
def test_what_is_no_number_is_no_figure(
        loaded: Loaded, replayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if replayed:
        replay_on_cpu(monkeypatch)
    stage = Stage(loaded, 2, 20)
    loaded.model.norm.weight.data.fill_(nan)
    with pytest.raises(ValueError, match="no number"):
        stage.decode_seconds(2, 20, 1)
