"""Exactness gate of encoders: it passes exact models and names the difference in others."""

import pytest
import torch
from support.small_checkpoints import tiny_encoder
from torch import Tensor

from shard.models.encoder import Encoder
from shard.ops.linear import PackedLinear
from shard.parallel.group import Alone
from shard.runner.encoder_exactness import verdict
from tests.shard.encoders import read_model
from tests.shard.forward import CPU


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with labels"])
def layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert", labels=request.param)
    return read_model(folder, torch.float32, Alone()).cut(1)


def test_what_keeps_its_bits_passes(layer: Encoder) -> None:
    assert verdict(layer, CPU) == ""


def test_a_product_that_depends_on_the_number_of_rows_is_found(
        layer: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    product = PackedLinear.__call__

    def spoiled(self: PackedLinear, x: Tensor) -> Tensor:
        y = product(self, x)
        return y if len(x) <= 200 else y.nextafter(torch.tensor(torch.inf))

    monkeypatch.setattr(PackedLinear, "__call__", spoiled)
    assert verdict(layer, CPU) == "a text of 1 tokens has other bits among 3 texts than alone"
