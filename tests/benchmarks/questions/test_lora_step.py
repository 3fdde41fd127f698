"""Tests of the adapter benchmark on a small model."""

import json
from pathlib import Path

import pytest

from benchmarks.harness.checkpoints import LLAMAS, SHAPES, make
from benchmarks.questions.lora_step import Settings, linears, make_adapter, measure, summary, table
from shard.config import ShardConfig
from shard.workers.load_decoder import load


@pytest.mark.parametrize("shape", LLAMAS)
def test_every_linear_of_every_layer_is_named_once(shape: str) -> None:
    names = [name for name, _, _ in linears(shape)]
    assert len(names) == len(set(names)) == 7 * SHAPES[shape]["num_hidden_layers"]


@pytest.mark.slow
def test_what_it_says(tmp_path: Path) -> None:
    settings = Settings(shape="tiny", streams=3, adapters=(1, 2), context=20, repeat=2)
    loaded = load(ShardConfig(model=str(make("tiny", tmp_path / "tiny")), threads=1, adaptable=True))
    for number, rank in ((1, 4), (2, 16)):
        loaded.wardrobe.load(number, make_adapter("tiny", rank, tmp_path / "adapter"))
    points = measure(loaded, settings)
    assert [line.split()[0] for line in table(points).splitlines()] == ["adapters", "0", "1", "2"]
    told = json.loads(json.dumps(summary(settings, loaded, points)))
    assert set(told["cost_percent"]) == {"1", "2"}
