"""Tests of shard/workers/model_loading.py: the memory check."""

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.config import ShardConfig
from shard.hardware.memory_budget import AvailableMemory
from shard.parallel.group import SingleRankGroup
from shard.workers import load_decoder, model_loading

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_weights_that_do_not_fit_are_rejected_before_reading(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_loading, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    progress: list[tuple[str, int, int]] = []
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder.load_decoder_model(config, lambda *report: progress.append(report))
    assert progress == []


def test_rank_with_the_least_memory_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class GroupWithLessMemory(SingleRankGroup):
        def all_reduce_min(self, number: int) -> int:
            return number // 2

    monkeypatch.setattr(model_loading, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    model_loading.check_weight_memory(1000, CPU, SingleRankGroup(), 1)
    with pytest.raises(ValueError, match="there is no room for the weights"):
        model_loading.check_weight_memory(1000, CPU, GroupWithLessMemory(), 1)


def test_gpu_rank_needs_memory_for_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoRankGroup(SingleRankGroup):
        rank, size = 0, 2

    monkeypatch.setattr(model_loading, "read_gpu_memory", lambda _: (1000, 2000))
    model_loading.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 1)
    with pytest.raises(ValueError, match=r"of 2 shards .* that the GPU has left"):
        model_loading.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 2)
