"""Tests of the number of shards by the rules of text-generation-inference."""

from pathlib import Path

import pytest

from launcher.compat.num_shards import choose_num_shards, count_gpus, count_visible_devices


@pytest.mark.parametrize(("sharded", "num_shard", "devices", "count"), [
    ("true", "", 4, 4), ("true", "2", 0, 2),
    ("false", "3", 8, 3), ("false", "", 8, 1),
    ("", "5", 8, 5), ("", "", 8, 8), ("", "", 0, 1),
])
def test_sharded_and_num_shard_together_give_the_count(sharded: str, num_shard: str, devices: int, count: int) -> None:
    assert choose_num_shards(sharded, num_shard, lambda: devices) == count


@pytest.mark.parametrize(("num_shard", "devices", "text"), [
    ("", 1, "--sharded true needs at least 2 shards, got 1: there are no more GPUs"),
    ("", 0, "got 1: there are no more GPUs to be seen; say how many with --num-shard"),
    ("1", 8, r"--sharded true needs at least 2 shards, got 1 \(--num-shard\)"),
])
def test_sharded_true_needs_at_least_two_shards(num_shard: str, devices: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        choose_num_shards("true", num_shard, lambda: devices)


def test_num_shard_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="--num-shard must be a whole number, got two"):
        choose_num_shards("", "two", lambda: 1)


@pytest.mark.parametrize(("variables", "count"), [
    ({}, 0),
    ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
    ({"CUDA_VISIBLE_DEVICES": "GPU-5, GPU-6"}, 2),
    ({"CUDA_VISIBLE_DEVICES": "0,1", "NVIDIA_VISIBLE_DEVICES": "all"}, 2),
    ({"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "3"}, 1),
    ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
    ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
    ({"NVIDIA_VISIBLE_DEVICES": "none"}, 0),
    ({"NVIDIA_VISIBLE_DEVICES": "all"}, 8),
    ({"NVIDIA_VISIBLE_DEVICES": "void"}, 8),
])
def test_visible_devices_are_those_of_the_driver(variables: dict[str, str], count: int) -> None:
    assert count_visible_devices(variables, lambda: 8) == count


def test_gpus_are_counted_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (program := tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert count_gpus() == 2


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0
