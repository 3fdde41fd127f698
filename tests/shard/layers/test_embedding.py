from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.model_runs.ranks_in_threads import InProcessRankGroup, run_on_ranks
from torch import Tensor

from shard.attention.model_inputs import ModelInputs
from shard.checkpoint.reader import CheckpointReader
from shard.layers.embedding import PositionedEmbedding, VocabParallelEmbedding, load_lm_head

VOCABULARY_SIZE, HIDDEN_SIZE = 13, 8
TABLE_SHAPE = (VOCABULARY_SIZE, HIDDEN_SIZE)
EMBEDDING_TABLE = torch.randn(TABLE_SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
TOKEN_IDS = torch.tensor([0, 3, 4, 12, 7, 7])
CPU = torch.device("cpu")
GROUP_SIZES = [1, 2, 3, 4, 8]


@pytest.fixture(scope="module")
def weights_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embedding")
    save_file({"table": EMBEDDING_TABLE}, folder / "model.safetensors")
    return folder


def read_embedding(folder: Path, group: InProcessRankGroup,
                   dtype: torch.dtype = torch.float32) -> VocabParallelEmbedding:
    with CheckpointReader(folder, dtype, CPU) as weights:
        return VocabParallelEmbedding(weights, group, "table", TABLE_SHAPE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", GROUP_SIZES)
def test_every_rank_gets_the_embeddings_of_all_tokens(weights_folder: Path, size: int, dtype: torch.dtype) -> None:
    outputs = run_on_ranks(size, lambda group: read_embedding(weights_folder, group, dtype).embed_tokens(TOKEN_IDS))
    assert all(torch.equal(rows, EMBEDDING_TABLE[TOKEN_IDS].to(dtype)) for rows in outputs)


@pytest.mark.parametrize("size", GROUP_SIZES)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_first_rank_gets_the_logits_of_the_whole_vocabulary(weights_folder: Path, size: int, num_rows: int) -> None:
    hidden = torch.randn(num_rows, HIDDEN_SIZE)

    def compute_logits(group: InProcessRankGroup) -> Tensor | None:
        with CheckpointReader(weights_folder, torch.float32, CPU) as weights:
            return load_lm_head(weights, group, "table", TABLE_SHAPE)(hidden)

    first, *others = run_on_ranks(size, compute_logits)
    torch.testing.assert_close(first, hidden @ EMBEDDING_TABLE.float().T)
    assert others == [None] * (size - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32(weights_folder: Path, dtype: torch.dtype) -> None:
    group = run_on_ranks(1, lambda group: group)[0]
    with CheckpointReader(weights_folder, dtype, CPU) as weights:
        head = load_lm_head(weights, group, "head", TABLE_SHAPE,
                            VocabParallelEmbedding(weights, group, "table", TABLE_SHAPE))
    hidden = torch.randn(2, HIDDEN_SIZE, dtype=dtype)
    torch.testing.assert_close(head(hidden), (hidden @ EMBEDDING_TABLE.to(dtype).T).float())


@pytest.mark.parametrize(("dtype", "kept"), [
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)])
def test_embedding_is_stored_in_the_smaller_dtype(weights_folder: Path, dtype: torch.dtype, kept: torch.dtype) -> None:
    group = run_on_ranks(1, lambda group: group)[0]
    assert read_embedding(weights_folder, group, dtype).weight.dtype == kept


@pytest.mark.parametrize("size", [1, 2])
def test_position_embedding_is_added(weights_folder: Path, size: int) -> None:
    position_table, positions = torch.randn(20, HIDDEN_SIZE), torch.tensor([19, 0, 1, 2, 5, 3])
    nothing = torch.empty(0)
    inputs = ModelInputs(TOKEN_IDS, positions, slots=nothing, sampled_rows=nothing, attention_plan=None)
    outputs = run_on_ranks(size, lambda group: PositionedEmbedding(read_embedding(weights_folder, group),
                                                                   position_table)(inputs))
    assert all(torch.equal(rows, EMBEDDING_TABLE[TOKEN_IDS].float() + position_table[positions]) for rows in outputs)
