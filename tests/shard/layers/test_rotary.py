from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_checkpoints import DEFAULT, DYNAMIC, LINEAR, LLAMA3, LONGROPE, YARN
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from shard.json_config import Given
from shard.layers.rotary import FREQUENCIES, RotaryTable
from shard.models.config import Rotary
from shard.models.rope_config import ROTARY_KINDS, read_rotary

POSITIONS = 2048
HEAD_DIM = 32
CPU = torch.device("cpu")
KINDS = {
    "default": DEFAULT, "linear": LINEAR, "dynamic": DYNAMIC, "llama3": LLAMA3, "yarn": YARN,
    "yarn, not cut": YARN | {"truncate": False, "beta_fast": 16, "beta_slow": 2},
    "yarn, amplitude": YARN | {"attention_factor": 1.5},
    "yarn, scales": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": LONGROPE,
    "longrope, amplitude": LONGROPE | {"attention_factor": 1.5},
    "longrope, factor": LONGROPE | {"factor": 32.0},
}


def table_of(parameters: dict[str, Any]) -> RotaryTable:
    rotary = read_rotary(Given({"rope_parameters": parameters}, "here"), POSITIONS)
    return RotaryTable(rotary, HEAD_DIM, POSITIONS, CPU)


def oracle(parameters: dict[str, Any], x: Tensor, positions: Tensor) -> Tensor:
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM, num_attention_heads=2, max_position_embeddings=POSITIONS, rope_parameters=parameters)
    cosines, sines = LlamaRotaryEmbedding(config)(x, positions[None])
    turned, _ = apply_rotary_pos_emb(x[None], x[None], cosines, sines, unsqueeze_dim=2)
    return turned[0]


@pytest.mark.parametrize("parameters", KINDS.values(), ids=KINDS)
def test_every_kind_turns_as_in_transformers(parameters: dict[str, Any]) -> None:
    positions = torch.tensor([0, 1, 2, 63, 64, 500, 511, 512, 1000, POSITIONS - 1])
    x = torch.rand(len(positions), 3, HEAD_DIM) * 2 - 1
    torch.testing.assert_close(
        table_of(parameters).at(positions)(x), oracle(parameters, x, positions), rtol=0, atol=2e-4)


def test_every_kind_that_is_read_can_be_computed() -> None:
    assert ROTARY_KINDS.keys() == FREQUENCIES.keys()


def test_bfloat16_is_turned_in_float32() -> None:
    positions, x = torch.arange(20), torch.randn(20, 3, HEAD_DIM).bfloat16()
    turn = table_of(DEFAULT).at(positions)
    assert torch.equal(turn(x), turn(x.float()).bfloat16())


@pytest.mark.slow
@given(num_rows=st.integers(2, 300), place=st.integers(0, 300), num_heads=st.integers(1, 7),
       head_dim=st.sampled_from([2, 6, 24, 32, 80]), seed=st.integers(0, 9))
@settings(max_examples=60)
def test_a_row_has_the_same_bits_in_any_company(num_rows: int, place: int, num_heads: int, head_dim: int,
                                                seed: int) -> None:
    torch.manual_seed(seed)
    table = RotaryTable(Rotary("default", 10000.0), head_dim, 512, CPU)
    positions, place = torch.randint(512, (num_rows,)), place % (num_rows - 1)
    rows = torch.randn(num_rows, num_heads + 2, head_dim)[:, :num_heads]
    pair = slice(place, place + 2)
    assert torch.equal(table.at(positions)(rows)[pair], table.at(positions[pair])(rows[pair].clone()))


@pytest.mark.slow
@given(shorter=st.integers(1, 1000), longer=st.integers(1000, 1100))
@settings(max_examples=20)
def test_a_position_has_the_same_bits_in_every_table(shorter: int, longer: int) -> None:
    x, last = torch.ones(1, 1, HEAD_DIM), torch.tensor([shorter - 1])
    short, long = (RotaryTable(Rotary("default", 10000.0), HEAD_DIM, length, CPU) for length in (shorter, longer))
    assert torch.equal(short.at(last)(x), long.at(last)(x))
