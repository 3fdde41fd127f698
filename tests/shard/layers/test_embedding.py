from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from shard.attention.inputs import Inputs
from shard.checkpoint.reader import Weights
from shard.layers.embedding import Embedding, PlacedEmbedding, read_head, tied_head
from tests.shard.side_by_side import Neighbour, side_by_side

VOCABULARY, HIDDEN = 13, 8
SHAPE = (VOCABULARY, HIDDEN)
TABLE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
TOKENS = torch.tensor([0, 3, 4, 12, 7, 7])
CPU = torch.device("cpu")
SIZES = [1, 2, 3, 4, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedding")
    save_file({"table": TABLE}, folder / "model.safetensors")
    return folder


def embedding(folder: Path, group: Neighbour, dtype: torch.dtype = torch.float32) -> Embedding:
    with Weights(folder, dtype, CPU) as weights:
        return Embedding(weights, group, "table", SHAPE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_has_the_rows_of_all_tokens(folder: Path, size: int, dtype: torch.dtype) -> None:
    found = side_by_side(size, lambda group: embedding(folder, group, dtype).rows(TOKENS))
    assert all(torch.equal(rows, TABLE[TOKENS].to(dtype)) for rows in found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_the_first_rank_has_the_logits_of_the_whole_vocabulary(folder: Path, size: int, num_rows: int) -> None:
    hidden = torch.randn(num_rows, HIDDEN)

    def logits(group: Neighbour) -> Tensor | None:
        with Weights(folder, torch.float32, CPU) as weights:
            return read_head(weights, group, "table", SHAPE)(hidden)

    first, *others = side_by_side(size, logits)
    torch.testing.assert_close(first, hidden @ TABLE.float().T)
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32(folder: Path, dtype: torch.dtype) -> None:
    group = side_by_side(1, lambda group: group)[0]
    with Weights(folder, dtype, CPU) as weights:
        head = tied_head(weights, group, ("head", "table"), SHAPE, Embedding(weights, group, "table", SHAPE))
    hidden = torch.randn(2, HIDDEN, dtype=dtype)
    torch.testing.assert_close(head(hidden), (hidden @ TABLE.to(dtype).T).float())


@pytest.mark.parametrize(("dtype", "kept"), [
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)])
def test_an_embedding_is_kept_in_the_smaller_type(folder: Path, dtype: torch.dtype, kept: torch.dtype) -> None:
    group = side_by_side(1, lambda group: group)[0]
    assert embedding(folder, group, dtype).weight.dtype == kept


@pytest.mark.parametrize("size", [1, 2])
def test_a_token_gets_the_row_of_its_position_too(folder: Path, size: int) -> None:
    places, positions = torch.randn(20, HIDDEN), torch.tensor([19, 0, 1, 2, 5, 3])
    nothing = torch.empty(0)
    inputs = Inputs(TOKENS, positions, slots=nothing, sampled=nothing, plan=None)
    found = side_by_side(size, lambda group: PlacedEmbedding(embedding(folder, group), places)(inputs))
    assert all(torch.equal(rows, TABLE[TOKENS].float() + places[positions]) for rows in found)
