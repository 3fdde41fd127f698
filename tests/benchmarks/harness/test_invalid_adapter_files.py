"""Tests that shards reject all invalid adapters of the benchmark."""

from pathlib import Path

import pytest

from benchmarks.harness.checkpoints import make
from benchmarks.harness.invalid_adapter_files import KINDS, WEIGHTS, put_together, spoiled, take_apart
from benchmarks.questions.invalid_adapters import Settings, write_adapters
from shard.config import ShardConfig
from shard.errors import Refused
from shard.workers.load_decoder import load

NUM = 5 * len(KINDS)


@pytest.mark.slow
def test_a_shard_takes_the_good_one_and_none_of_the_others(tmp_path: Path) -> None:
    names = write_adapters(Settings(shape="tiny", requests=NUM), tmp_path / "adapters")
    wardrobe = load(ShardConfig(model=str(make("tiny", tmp_path / "tiny")), threads=1, adaptable=True)).wardrobe
    assert wardrobe.load(1, tmp_path / "adapters" / "good") > 0
    for number, name in enumerate(names, 2):
        with pytest.raises(Refused):
            wardrobe.load(number, tmp_path / "adapters" / name)


def test_one_number_spoils_in_one_way() -> None:
    header = {f"model.layers.0.self_attn.q_proj.lora_{part}.weight": {
        "dtype": "BF16", "shape": [2, 8], "data_offsets": [place, place + 32]} for place, part in ((0, "A"), (32, "B"))}
    files = {"adapter_config.json": b'{"peft_type": "LORA", "r": 2}', WEIGHTS: put_together(header, bytes(64))}
    assert take_apart(files[WEIGHTS]) == (header, bytes(64))
    for number in range(NUM):
        assert spoiled(files, number) == spoiled(files, number) != files
        assert spoiled(files, number) != spoiled(files, number + 1)
