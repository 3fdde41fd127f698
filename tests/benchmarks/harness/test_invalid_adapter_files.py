"""Tests that shards reject all invalid adapters of the benchmark."""

from pathlib import Path

import pytest

from benchmarks.experiments.invalid_adapters import InvalidAdaptersSettings, write_invalid_adapters
from benchmarks.harness.invalid_adapter_files import (
    DEFECTS,
    WEIGHTS_FILE,
    add_defect,
    join_safetensors,
    split_safetensors,
)
from benchmarks.harness.random_checkpoints import make_random_checkpoint
from shard.config import ShardConfig
from shard.errors import RejectedMessage
from shard.workers.model_loading import load_decoder_model

NUM_ADAPTERS = 5 * len(DEFECTS)


@pytest.mark.slow
def test_shard_accepts_only_the_valid_adapter(tmp_path: Path) -> None:
    names = write_invalid_adapters(InvalidAdaptersSettings(shape="tiny", requests=NUM_ADAPTERS), tmp_path / "adapters")
    registry = load_decoder_model(ShardConfig(model=str(make_random_checkpoint("tiny", tmp_path / "tiny")), threads=1,
                                              adaptable=True)).loaded_adapters
    assert registry.load(1, tmp_path / "adapters" / "good") > 0
    for number, name in enumerate(names, 2):
        with pytest.raises(RejectedMessage):
            registry.load(number, tmp_path / "adapters" / name)


def test_invalid_adapter_depends_only_on_its_number() -> None:
    header = {f"model.layers.0.self_attn.q_proj.lora_{part}.weight": {"dtype": "BF16", "shape": [2, 8],
                                                                      "data_offsets": [offset, offset + 32]}
              for offset, part in ((0, "A"), (32, "B"))}
    files = {"adapter_config.json": b'{"peft_type": "LORA", "r": 2}', WEIGHTS_FILE: join_safetensors(header, bytes(64))}
    assert split_safetensors(files[WEIGHTS_FILE]) == (header, bytes(64))
    for number in range(NUM_ADAPTERS):
        assert add_defect(files, number) == add_defect(files, number) != files
        assert add_defect(files, number) != add_defect(files, number + 1)
