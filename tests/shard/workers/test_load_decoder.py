"""Loading a model: reported progress, and configurations that are rejected early."""

from dataclasses import replace

import pytest
import torch
from support.small_checkpoints import make_tiny_checkpoint

from shard.config import ShardConfig
from shard.hardware.memory import AvailableMemory
from shard.parallel.group import SingleRankGroup
from shard.workers import load_decoder

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_progress_covers_all_bytes_and_then_the_check(config: ShardConfig) -> None:
    progress: list[tuple[str, int, int]] = []
    load_decoder.load_decoder_model(config, lambda *told: progress.append(told))
    *read, last = progress
    assert {phase for phase, _, _ in read} == {"load"}
    assert read[-1][1] == read[-1][2]
    assert last == ("check", 0, 0)


def test_weights_that_do_not_fit_are_rejected_before_reading(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_decoder, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    progress: list[tuple[str, int, int]] = []
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder.load_decoder_model(config, lambda *told: progress.append(told))
    assert progress == []


def test_inexact_model_is_rejected_if_exactness_is_demanded(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_decoder.load_decoder_model(replace(config, exact=True)).inexact_reason == ""
    monkeypatch.setattr(load_decoder.ExactnessGate, "find_difference", lambda _: "something differs")
    assert load_decoder.load_decoder_model(config).inexact_reason == "something differs"
    with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
        load_decoder.load_decoder_model(replace(config, exact=True))


def test_rank_with_the_least_memory_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class GroupWithLessMemory(SingleRankGroup):
        def minimum(self, number: int) -> int:
            return number // 2

    monkeypatch.setattr(load_decoder, "read_host_memory",
                        lambda: AvailableMemory(1000, "that the system has available"))
    load_decoder.check_weight_memory(1000, CPU, SingleRankGroup(), 1)
    with pytest.raises(ValueError, match="there is no room for the weights"):
        load_decoder.check_weight_memory(1000, CPU, GroupWithLessMemory(), 1)


def test_gpu_rank_needs_memory_for_its_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoRankGroup(SingleRankGroup):
        rank, size = 0, 2

    monkeypatch.setattr(load_decoder, "read_gpu_memory", lambda _: (1000, 2000))
    load_decoder.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 1)
    with pytest.raises(ValueError, match=r"of 2 shards .* that the GPU has left"):
        load_decoder.check_weight_memory(2000, torch.device("cuda", 0), TwoRankGroup(), 2)
