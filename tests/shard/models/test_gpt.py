from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint
from torch import Tensor

from shard.checkpoint.reader import Weights
from shard.json_config import Given
from shard.models.decoder import Source
from shard.models.gpt import grouped_parts, read_gelu, share_evenly
from shard.models.read_config import read_config
from shard.parallel.group import Alone
from tests.shard.forward import read_model, run
from tests.shard.side_by_side import Neighbour, Table


def blocks(folder: Path, rank: int, size: int) -> list[range]:
    """Return a rank's ranges of the fused query, key and value weight, in heads."""
    with Weights(folder, torch.float32, torch.device("cpu")) as weights:
        source = Source(read_config(folder), weights, Neighbour(rank, size, Table(size)))
        parts = grouped_parts(source, "query_key_value", bias=False)
    width = source.config.head_dim
    assert all(part.shape == ((4 + 2 * source.config.num_kv_heads) * width, 64) for part in parts)
    return [range(part.rows.start // width, part.rows.stop // width) for part in parts]


def at(*places: int) -> list[range]:
    return [range(place, place + 1) for place in places]


@pytest.mark.parametrize(("rank", "size", "expected"), [
    (0, 1, [range(2), range(4, 6), *at(2, 6), *at(3, 7)]),
    (1, 2, [range(4, 6), *at(6), *at(7)]),
    (1, 4, at(1, 2, 3)), (2, 4, at(4, 6, 7))])
def test_every_rank_has_the_queries_of_its_key_heads(
        tmp_path_factory: pytest.TempPathFactory, rank: int, size: int, expected: list[range]) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon")
    assert blocks(folder, rank, size) == expected


@pytest.mark.parametrize(("rank", "size", "expected"), [
    (0, 1, at(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)), (1, 2, at(6, 9, 7, 10, 8, 11))])
def test_groups_may_be_of_one_query(
        tmp_path_factory: pytest.TempPathFactory, rank: int, size: int, expected: list[range]) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox")
    assert blocks(folder, rank, size) == expected


class Counting(Alone):
    """Single-rank group that counts its sums."""

    num_sums = 0

    def sum(self, x: Tensor) -> Tensor:
        self.num_sums += 1
        return x


@pytest.mark.parametrize(("changes", "per_layer"), [({}, 1), ({"use_parallel_residual": False}, 2)])
def test_halves_beside_each_other_are_summed_once(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], per_layer: int) -> None:
    group = Counting()
    model = read_model(tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox", **changes), torch.float32, group)
    run(model, group, torch.float32)
    assert group.num_sums == per_layer * model.num_layers


def test_a_gelu_is_known_by_all_its_names() -> None:
    given = Given({"hidden_act": "gelu_fast"}, "config.json")
    assert read_gelu(given, "hidden_act", "gelu") == "tanh"
    assert read_gelu(given, "activation", "gelu") == "none"
    with pytest.raises(ValueError, match="activation relu is not supported; supported: gelu, gelu_python, gelu_new"):
        read_gelu(Given({"activation": "relu"}, "config.json"), "activation", "gelu")


def test_heads_share_the_hidden_size_evenly() -> None:
    given = Given({}, "config.json")
    assert share_evenly(given, 64, 4) == 16
    with pytest.raises(ValueError, match=r"hidden size \(65\) must be a multiple of .*attention heads \(4\)"):
        share_evenly(given, 65, 4)
