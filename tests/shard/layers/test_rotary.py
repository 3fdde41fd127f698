from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.small_checkpoints import (
    DEFAULT_ROPE,
    DYNAMIC_ROPE,
    LINEAR_ROPE,
    LLAMA3_ROPE,
    LONGROPE_ROPE,
    YARN_ROPE,
)
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from shard.json_config import JsonConfig
from shard.layers.rotary import FREQUENCIES_BY_ROPE_TYPE, RotaryConfig, RotaryTable
from shard.models.config import ROPE_TYPE_SETTINGS, parse_rotary_config

MAX_POSITIONS = 2048
HEAD_DIM = 32
CPU = torch.device("cpu")
ROPE_PARAMETERS = {
    "default": DEFAULT_ROPE, "linear": LINEAR_ROPE, "dynamic": DYNAMIC_ROPE, "llama3": LLAMA3_ROPE, "yarn": YARN_ROPE,
    "yarn, not cut": YARN_ROPE | {"truncate": False, "beta_fast": 16, "beta_slow": 2},
    "yarn, amplitude": YARN_ROPE | {"attention_factor": 1.5},
    "yarn, scales": YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": LONGROPE_ROPE,
    "longrope, amplitude": LONGROPE_ROPE | {"attention_factor": 1.5},
    "longrope, factor": LONGROPE_ROPE | {"factor": 32.0},
}


def make_rotary_table(parameters: dict[str, Any]) -> RotaryTable:
    rotary = parse_rotary_config(JsonConfig({"rope_parameters": parameters}, "here"), MAX_POSITIONS)
    return RotaryTable(rotary, HEAD_DIM, MAX_POSITIONS, CPU)


def rotate_with_transformers(parameters: dict[str, Any], x: Tensor, positions: Tensor) -> Tensor:
    config = LlamaConfig(hidden_size=2 * HEAD_DIM, num_attention_heads=2, max_position_embeddings=MAX_POSITIONS,
                         rope_parameters=parameters)
    cosines, sines = LlamaRotaryEmbedding(config)(x, positions[None])
    rotated, _ = apply_rotary_pos_emb(x[None], x[None], cosines, sines, unsqueeze_dim=2)
    return rotated[0]


@pytest.mark.parametrize("parameters", ROPE_PARAMETERS.values(), ids=ROPE_PARAMETERS)
def test_every_rope_type_matches_transformers(parameters: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 2, 63, 64, 500, 511, 512, 1000, MAX_POSITIONS - 1])
    x = torch.rand(len(positions), 3, HEAD_DIM) * 2 - 1
    torch.testing.assert_close(make_rotary_table(parameters).select_positions(positions)(x),
                               rotate_with_transformers(parameters, x, positions), rtol=0, atol=2e-4)


def test_every_supported_rope_type_has_frequencies() -> None:
    assert ROPE_TYPE_SETTINGS.keys() == FREQUENCIES_BY_ROPE_TYPE.keys()


def test_bfloat16_is_rotated_in_float32() -> None:
    positions, x = torch.arange(20), torch.randn(20, 3, HEAD_DIM).bfloat16()
    rotary = make_rotary_table(DEFAULT_ROPE).select_positions(positions)
    assert torch.equal(rotary(x), rotary(x.float()).bfloat16())


@pytest.mark.slow
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), num_heads=st.integers(1, 7),
       head_dim=st.sampled_from([2, 6, 24, 32, 80]), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_result_does_not_depend_on_other_rows(num_rows: int, place: int, num_heads: int, head_dim: int,
                                              seed: int) -> None:
    torch.manual_seed(seed)
    table = RotaryTable(RotaryConfig("default", 10000.0), head_dim, 512, CPU)
    positions, place = torch.randint(512, (num_rows,)), place % (num_rows - 1)
    rows = torch.randn(num_rows, num_heads + 2, head_dim)[:, :num_heads]
    pair = slice(place, place + 2)
    assert torch.equal(table.select_positions(positions)(rows)[pair],
                       table.select_positions(positions[pair])(rows[pair].clone()))


@pytest.mark.slow
@given(shorter=st.integers(1, 1000), longer=st.integers(1000, 1100))
@settings(max_examples=20)
def test_rotation_does_not_depend_on_the_table_length(shorter: int, longer: int) -> None:
    x, last = torch.ones(1, 1, HEAD_DIM), torch.tensor([shorter - 1])
    short, long = (RotaryTable(RotaryConfig("default", 10000.0), HEAD_DIM, length, CPU) for length in (shorter, longer))
    assert torch.equal(short.select_positions(last)(x), long.select_positions(last)(x))


def test_odd_number_of_rotated_values_is_refused() -> None:
    with pytest.raises(ValueError, match="7 of a head's 16 values are to be rotated, which is an odd number"):
        RotaryTable(RotaryConfig("default", 10000.0, rotated_fraction=0.45), 16, 32, torch.device("cpu"))
