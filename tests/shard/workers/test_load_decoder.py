"""Loading a model: reported progress, and exactness on demand."""

from dataclasses import replace

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from shard.config import ShardConfig
from shard.workers import load_decoder

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> ShardConfig:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_progress_covers_all_bytes_and_then_the_check(config: ShardConfig) -> None:
    progress: list[tuple[str, int, int]] = []
    load_decoder.load_decoder_model(config, lambda *report: progress.append(report))
    *read, last = progress
    assert {phase for phase, _, _ in read} == {"load"}
    assert read[-1][1] == read[-1][2]
    assert last == ("check", 0, 0)


def test_inexact_model_is_rejected_if_exactness_is_demanded(
        config: ShardConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_decoder.load_decoder_model(replace(config, exact=True)).inexact_reason == ""
    monkeypatch.setattr(load_decoder.ExactnessGate, "find_difference", lambda _: "something differs")
    assert load_decoder.load_decoder_model(config).inexact_reason == "something differs"
    with pytest.raises(ValueError, match="--exact cannot be kept here: something differs"):
        load_decoder.load_decoder_model(replace(config, exact=True))
