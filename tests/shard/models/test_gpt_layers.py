from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import load_decoder_model, run_forward
from support.model_runs.ranks_in_threads import InProcessExchange, InProcessRankGroup
from torch import Tensor

from shard.checkpoint.reader import CheckpointReader
from shard.json_config import JsonConfig
from shard.models.decoder import ModelLoader
from shard.models.gpt_layers import compute_head_dim, list_grouped_qkv_rows, parse_gelu_approximation
from shard.models.registry import load_model_config
from shard.parallel.group import SingleRankGroup


def find_qkv_head_ranges(folder: Path, rank: int, size: int) -> list[range]:
    """Return a rank's ranges of the fused query, key and value weight, in heads."""
    with CheckpointReader(folder, torch.float32, torch.device("cpu")) as weights:
        source = ModelLoader(load_model_config(folder), weights,
                             InProcessRankGroup(rank, size, InProcessExchange(size)))
        parts = list_grouped_qkv_rows(source, "query_key_value", bias=False)
    width = source.config.head_dim
    assert all(part.shape == ((4 + 2 * source.config.num_kv_heads) * width, 64) for part in parts)
    return [range(part.rows.start // width, part.rows.stop // width) for part in parts]


def single_head_ranges(*heads: int) -> list[range]:
    return [range(place, place + 1) for place in heads]


@pytest.mark.parametrize(("rank", "size", "expected"), [
    (0, 1, [range(2), range(4, 6), *single_head_ranges(2, 6), *single_head_ranges(3, 7)]),
    (1, 2, [range(4, 6), *single_head_ranges(6), *single_head_ranges(7)]),
    (1, 4, single_head_ranges(1, 2, 3)), (2, 4, single_head_ranges(4, 6, 7))])
def test_every_rank_has_the_query_heads_of_its_kv_heads(
        tmp_path_factory: pytest.TempPathFactory, rank: int, size: int, expected: list[range]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "falcon")
    assert find_qkv_head_ranges(folder, rank, size) == expected


@pytest.mark.parametrize(("rank", "size", "expected"), [
    (0, 1, single_head_ranges(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11)), (1, 2, single_head_ranges(6, 9, 7, 10, 8, 11))])
def test_kv_groups_may_have_one_query_head(
        tmp_path_factory: pytest.TempPathFactory, rank: int, size: int, expected: list[range]) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox")
    assert find_qkv_head_ranges(folder, rank, size) == expected


class SumCountingGroup(SingleRankGroup):
    """Single-rank group that counts its sums."""

    num_sums = 0

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        self.num_sums += 1
        return x


@pytest.mark.parametrize(("changes", "per_layer"), [({}, 1), ({"use_parallel_residual": False}, 2)])
def test_parallel_residual_needs_one_sum_per_layer(
        tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], per_layer: int) -> None:
    group = SumCountingGroup()
    model = load_decoder_model(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "gpt_neox", **changes),
                               torch.float32, group)
    run_forward(model, group, torch.float32)
    assert group.num_sums == per_layer * model.num_layers


def test_gelu_is_accepted_by_all_its_names() -> None:
    json_config = JsonConfig({"hidden_act": "gelu_fast"}, "config.json")
    assert parse_gelu_approximation(json_config, "hidden_act", "gelu") == "tanh"
    assert parse_gelu_approximation(json_config, "activation", "gelu") == "none"
    with pytest.raises(ValueError, match="activation relu is not supported; supported: gelu, gelu_python, gelu_new"):
        parse_gelu_approximation(JsonConfig({"activation": "relu"}, "config.json"), "activation", "gelu")


def test_hidden_size_must_be_a_multiple_of_the_number_of_heads() -> None:
    json_config = JsonConfig({}, "config.json")
    assert compute_head_dim(json_config, 64, 4) == 16
    with pytest.raises(ValueError, match=r"hidden size \(65\) must be a multiple of .*attention heads \(4\)"):
        compute_head_dim(json_config, 65, 4)
