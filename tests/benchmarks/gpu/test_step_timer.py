"""Tests of timing a small model's steps, launched and replayed."""

from math import nan

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.replayable_model import replay_on_cpu

from benchmarks.gpu import step_timer
from benchmarks.gpu.step_timer import StepTimer
from shard.config import ShardConfig
from shard.runner.cuda_graphs import CudaGraphRunner
from shard.runner.model_runner import ModelRunner
from shard.workers.model_loading import LoadedDecoder, load_decoder_model


@pytest.fixture
def loaded_model(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> LoadedDecoder:
    monkeypatch.setattr(step_timer, "NUM_TIMED_STEPS", 3)
    return load_decoder_model(ShardConfig(model=str(make_tiny_checkpoint(tmp_path_factory.getbasetemp())), threads=1))


@pytest.fixture
def step_counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the steps run, and the steps that began before the previous one ended."""
    counts = {"run": 0, "ahead": 0}
    run, begin_step = ModelRunner.run, CudaGraphRunner.begin_step

    def counted_run(self, step, cache):  # type: ignore[no-untyped-def]
        counts["run"] += 1
        return run(self, step, cache)

    def counted_begin(self, step, cache, behind):  # type: ignore[no-untyped-def]
        counts["ahead"] += behind is not None
        return begin_step(self, step, cache, behind)
    monkeypatch.setattr(ModelRunner, "run", counted_run)
    monkeypatch.setattr(CudaGraphRunner, "begin_step", counted_begin)
    return counts


def test_first_step_is_not_timed(loaded_model: LoadedDecoder, step_counts: dict[str, int]) -> None:
    timer = StepTimer(loaded_model, 4, 40)
    assert len(timer.time_decode_steps(3, 20, 2)) == 2
    assert step_counts == {"run": 3, "ahead": 0}
    assert len(timer.time_prefill([40, 7], 1)) == 1
    assert step_counts["run"] == 3 + 2


def test_replayed_steps_start_before_the_last_one_ends(
        loaded_model: LoadedDecoder, step_counts: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    replay_on_cpu(monkeypatch)
    timer = StepTimer(loaded_model, 4, 40)
    assert timer.uses_cuda_graphs
    assert min(timer.time_decode_steps(4, 40, 1)) > 0
    assert step_counts == {"run": 0, "ahead": 2 * step_timer.NUM_TIMED_STEPS}


@pytest.mark.parametrize("replayed", [False, True])
def test_non_finite_output_is_an_error(
        loaded_model: LoadedDecoder, replayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if replayed:
        replay_on_cpu(monkeypatch)
    timer = StepTimer(loaded_model, 2, 20)
    loaded_model.model.norm.weight.data.fill_(nan)
    with pytest.raises(ValueError, match="no number"):
        timer.time_decode_steps(2, 20, 1)
