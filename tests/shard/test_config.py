import json
from dataclasses import asdict
from typing import Any

import pytest

from shard.config import ShardConfig, SimulatedConfig


def test_config_survives_json_serialization() -> None:
    config = ShardConfig("unix:/tmp/shard", rank=1, world_size=2, ready_fd=5, model="/models/small", threads=3,
                         memory_fraction=0.25, simulated=SimulatedConfig(seed=7, faults="die@decode"))
    assert ShardConfig.from_json(json.dumps(asdict(config))) == config


def test_omitted_settings_have_defaults() -> None:
    assert ShardConfig.from_json('{"socket": "unix:/tmp/shard"}') == ShardConfig("unix:/tmp/shard")


def test_rank_must_be_below_world_size() -> None:
    with pytest.raises(ValueError, match=r"rank must be below world_size \(2\), got 2"):
        ShardConfig(rank=2, world_size=2)


@pytest.mark.parametrize(("wrong", "rule"), [
    ({"threads": -1}, "threads must be at least 0, got -1"),
    ({"memory_fraction": 1.5}, "memory_fraction must be at most 1, got 1.5"),
    ({"memory_fraction": 0.0}, "memory_fraction must be at least 0.01, got 0.0"),
    ({"dtype": "int8"}, "dtype must be one of auto, float32, bfloat16, float16, got int8"),
    ({"device": "tpu"}, "device must be one of auto, cpu, cuda, got tpu"),
    ({"attention": "flash"}, "attention must be one of auto, reference, cpu, native, triton, got flash"),
    ({"dist_backend": "mpi"}, "dist_backend must be one of auto, memory, gloo, nccl, got mpi"),
], ids=str)
def test_setting_out_of_bounds_is_rejected_with_its_bound(wrong: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ShardConfig(**wrong)


@pytest.mark.parametrize("wrong", [{"num_blocks": 0}, {"time_scale": -1.0}, {"vocabulary_size": 256}], ids=str)
def test_bounds_of_the_simulated_config_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        SimulatedConfig(**wrong)


def test_fault_script_is_checked_on_construction() -> None:
    with pytest.raises(ValueError, match="not a fault"):
        SimulatedConfig(faults="die@lunch")
