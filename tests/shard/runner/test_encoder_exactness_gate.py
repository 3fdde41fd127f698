"""Exactness gate of encoders: it passes exact models and names the difference in others."""

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_encoder
from support.model_runs.decoder_reference import CPU
from support.model_runs.encoder_reference import load_encoder_model
from torch import Tensor

from shard.models.encoder import Encoder
from shard.ops.linear import PackedLinear
from shard.parallel.group import SingleRankGroup
from shard.runner.encoder_exactness_gate import find_difference


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with labels"])
def one_layer_encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=request.param)
    return load_encoder_model(folder, torch.float32, SingleRankGroup()).copy_first_layers(1)


def test_exact_model_passes(one_layer_encoder: Encoder) -> None:
    assert find_difference(one_layer_encoder, CPU) == ""


def test_linear_that_depends_on_the_number_of_rows_is_found(
        one_layer_encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    original_call = PackedLinear.__call__

    def call_depending_on_rows(self: PackedLinear, x: Tensor) -> Tensor:
        y = original_call(self, x)
        return y if len(x) <= 200 else y.nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(PackedLinear, "__call__", call_depending_on_rows)
    assert find_difference(one_layer_encoder, CPU) == "a text of 1 tokens has other bits among 3 texts than alone"
