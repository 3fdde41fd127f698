"""Steps measured during the warm-up of an encoder, and what is remembered of steps. Those of a decoder are tested in
test_decoder.py."""

from math import inf
from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.generation import WARMUP_REQUEST

from shard.config import ShardConfig
from shard.hardware.probe_cache import ProbeCache
from shard.parallel.group import SingleRankGroup
from shard.pb import shard_pb2 as pb
from shard.state.sequence import PoolingText
from shard.workers import warmup
from shard.workers.decoder import DecoderWorker
from shard.workers.warmup import MaxStepSizes, WarmupStep, WarmupTimingCache, make_encoder_series, measure_steps


def measure_step_sizes(sizes: MaxStepSizes, slow_step_seconds: float = inf) -> list[tuple[int, int, int]]:
    answer = pb.WarmupAnswer()
    measure_steps(make_encoder_series(lambda _: None, sizes), SingleRankGroup(), slow_step_seconds, answer)
    assert len(answer.seconds) == len(answer.rows)
    assert all(seconds >= 0 for seconds in answer.seconds)
    return [*zip(answer.rows, answer.chunk_tokens, answer.context, strict=True)]


def test_steps_grow_in_text_length_and_then_in_number_of_texts() -> None:
    assert measure_step_sizes(MaxStepSizes(9, 300, 300)) == [
        (1, 16, 16), (1, 64, 64), (1, 256, 256), (1, 300, 300), (2, 64, 64), (8, 256, 256), (9, 288, 288)]


def test_no_step_is_larger_than_the_limits() -> None:
    assert measure_step_sizes(MaxStepSizes(100, 70, 70)) == [(1, 16, 16), (1, 64, 64), (1, 70, 70), (2, 64, 64)]
    assert measure_step_sizes(MaxStepSizes(1, 3, 3)) == [(1, 3, 3), (1, 3, 3)]
    assert measure_step_sizes(MaxStepSizes(100, 160, 40)) == [(1, 16, 16), (1, 40, 40), (2, 64, 64), (5, 160, 160)]


def test_two_sizes_of_a_series_are_measured_however_slow() -> None:
    assert measure_step_sizes(MaxStepSizes(9, 300, 300),
                              slow_step_seconds=-1.0) == [(1, 16, 16), (1, 64, 64), (2, 64, 64), (8, 256, 256)]


def test_brief_steps_are_run_twice() -> None:
    runs: list[int] = []

    def record_run(texts: list[PoolingText]) -> None:
        runs.append(len(texts))

    measure_steps(make_encoder_series(record_run, MaxStepSizes(1, 16, 16)), SingleRankGroup(), inf,
                  pb.WarmupAnswer())
    assert len(runs) in {2, 3, 4}  # a run on a busy machine may be too slow to be repeated


@pytest.mark.parametrize(("seconds_now", "is_recalled"), [(0.8, True), (4.0, True), (0.7, False)])
def test_times_are_remembered_unless_steps_are_much_faster_now(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_now: float, *, is_recalled: bool) -> None:
    """A machine that was busy at the earlier start is measured again; one that is busy now is not."""
    times = iter([9.0, seconds_now])
    monkeypatch.setattr(warmup, "time_step", lambda step, group: next(times))
    first_step = WarmupStep(lambda: None, 1, 0, 32)
    timing_cache = WarmupTimingCache(ProbeCache(tmp_path / "memory"), "key")
    measured = pb.WarmupAnswer(rows=[1, 4], chunk_tokens=[0, 0], context=[32, 128], seconds=[1.0, 2.0])
    timing_cache.save(measured)
    answer = pb.WarmupAnswer()
    assert timing_cache.restore(first_step, SingleRankGroup(), answer) == is_recalled
    assert answer == (measured if is_recalled else pb.WarmupAnswer())


def test_nothing_is_recalled_without_a_file_or_under_another_key(tmp_path: Path) -> None:
    WarmupTimingCache(ProbeCache(tmp_path / "memory"), "key").save(pb.WarmupAnswer(rows=[1], seconds=[1.0]))
    for timing_cache in (WarmupTimingCache(ProbeCache(tmp_path / "memory"), "other"),
                         WarmupTimingCache(ProbeCache(None), "key")):
        assert not timing_cache.restore(WarmupStep(pytest.fail, 1, 0, 32), SingleRankGroup(), pb.WarmupAnswer())


def test_second_start_of_a_model_runs_one_small_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ShardConfig(model=str(make_tiny_checkpoint(tmp_path)), device="cpu", threads=1,
                           memory=str(tmp_path / "memory"))
    first_answer = DecoderWorker(settings).warmup(WARMUP_REQUEST)
    assert len(first_answer.rows) > 3
    timed_steps: list[WarmupStep] = []

    def time_step(step: WarmupStep, group: SingleRankGroup) -> float:
        timed_steps.append(step)
        step.run()
        return inf  # this machine is busier than it was

    monkeypatch.setattr(warmup, "time_step", time_step)
    answer = DecoderWorker(settings).warmup(WARMUP_REQUEST)
    assert [*zip(answer.rows, answer.seconds, strict=True)] == [
        *zip(first_answer.rows, first_answer.seconds, strict=True)]
    assert [(step.num_rows, step.num_chunk_tokens) for step in timed_steps] == [(1, 0), (1, 0)]
