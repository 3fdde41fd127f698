import json
from dataclasses import asdict

import pytest

from shard.config import ShardConfig, SimulatedConfig


def test_a_config_survives_its_way_to_another_process() -> None:
    config = ShardConfig("unix:/tmp/shard", rank=1, world_size=2, ready_fd=5,
                         simulated=SimulatedConfig(seed=7, faults="die@decode"))
    assert ShardConfig.from_json(json.dumps(asdict(config))) == config


def test_what_is_not_said_has_a_default() -> None:
    assert ShardConfig.from_json('{"socket": "unix:/tmp/shard"}') == ShardConfig("unix:/tmp/shard")


def test_a_rank_is_one_of_the_world() -> None:
    with pytest.raises(ValueError, match=r"rank must be below world_size \(2\), got 2"):
        ShardConfig(rank=2, world_size=2)


@pytest.mark.parametrize("wrong", [{"num_blocks": 0}, {"time_scale": -1.0}, {"vocabulary_size": 256}], ids=str)
def test_bounds_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        SimulatedConfig(**wrong)


def test_a_script_of_faults_is_checked_at_birth() -> None:
    with pytest.raises(ValueError, match="not a fault"):
        SimulatedConfig(faults="die@lunch")
