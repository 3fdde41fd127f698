"""Tests of the benchmark of a decode step beside the machine's limits."""

import json
from pathlib import Path

import pytest

from benchmarks.experiments.cpu_decode_roofline import (
    CpuDecodeRooflineSettings,
    StepWork,
    bench,
    count_work,
    format_table,
    make_point,
    make_summary,
    measure,
)
from benchmarks.harness.random_checkpoints import make_random_checkpoint
from shard.config import ShardConfig
from shard.workers.model_loading import load_decoder_model


def test_share_is_that_of_the_slower_limit_in_each_turn() -> None:
    work = StepWork(num_bytes=100.0, num_operations=1000.0)
    point = make_point("int8", 8, work, [(2.0, 100.0, 1000.0), (4.0, 50.0, 1000.0), (4.0, 100.0, 1000.0)])
    assert (point.step_ms, point.read_limit_ms, point.multiply_limit_ms) == (4000.0, 1000.0, 1000.0)
    assert point.share == 0.5
    assert format_table([point]).splitlines()[1].split() == ["int8", "8", "4000.0", "1000.0", "1000.0", "50"]


@pytest.mark.slow
def test_work_is_that_of_the_weights_and_the_cache(tmp_path: Path) -> None:
    folder = make_random_checkpoint("tiny", tmp_path / "tiny")
    loaded_model = load_decoder_model(ShardConfig(model=str(folder), device="cpu", threads=1))
    layer = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 768  # query and output, key and value, and the MLP
    num_weights = 4 * layer + 4096 * 256
    cache_bytes = 2 * 4 * 128 * 4  # keys and values of a token, in float32
    assert count_work(loaded_model, folder, "int4", 3, 10) == StepWork(num_weights / 2 + 30 * cache_bytes,
                                                                       2.0 * num_weights * 3)
    settings = CpuDecodeRooflineSettings(repeat=2, context=16, threads=1)
    point = measure(loaded_model, folder, "int8", 2, settings)
    assert point.step_ms > 0
    assert json.loads(json.dumps(make_summary(settings, [point])))["points"][0]["weights"] == "int8"


def test_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match="--formats must be of 16, int8, int4, got int3"):
        bench(CpuDecodeRooflineSettings(formats=("int3",)))
