"""Tests of the adapter benchmark on a small model."""

import json
from pathlib import Path

import pytest

from benchmarks.experiments.lora_step import (
    LoraStepSettings,
    format_table,
    iter_linears,
    make_summary,
    measure,
    write_random_adapter,
)
from benchmarks.harness.random_checkpoints import LLAMA_SHAPES, MODEL_CONFIGS, make_random_checkpoint
from shard.config import ShardConfig
from shard.workers.model_loading import load_decoder_model


@pytest.mark.parametrize("shape", LLAMA_SHAPES)
def test_every_linear_of_every_layer_is_named_once(shape: str) -> None:
    names = [name for name, _, _ in iter_linears(shape)]
    assert len(names) == len(set(names)) == 7 * MODEL_CONFIGS[shape]["num_hidden_layers"]


@pytest.mark.slow
def test_results_are_a_table_and_a_summary(tmp_path: Path) -> None:
    settings = LoraStepSettings(shape="tiny", streams=3, adapters=(1, 2), context=20, repeat=2)
    loaded = load_decoder_model(ShardConfig(model=str(make_random_checkpoint("tiny", tmp_path / "tiny")), threads=1,
                                      adaptable=True))
    for number, rank in ((1, 4), (2, 16)):
        loaded.loaded_adapters.load(number, write_random_adapter("tiny", rank, tmp_path / "adapter"))
    points = measure(loaded, settings)
    assert [line.split()[0] for line in format_table(points).splitlines()] == ["adapters", "0", "1", "2"]
    summary = json.loads(json.dumps(make_summary(settings, loaded, points)))
    assert set(summary["cost_percent"]) == {"1", "2"}
