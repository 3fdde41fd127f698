from pathlib import Path

import pytest
import torch
from support.small_checkpoints import tiny_checkpoint

from shard.checkpoint.reader import Weights
from shard.models.decoder import Source, check_ranks
from shard.models.read_config import read_config
from shard.parallel.group import Alone
from tests.shard.forward import agrees, oracle, read_model, run
from tests.shard.side_by_side import Neighbour, Table


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp())


def test_a_model_says_what_a_cache_for_it_needs(folder: Path) -> None:
    model = read_model(folder, torch.float32, Alone())
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (2, 2, 16)


def test_a_cut_model_is_the_same_up_to_there(folder: Path) -> None:
    model = read_model(folder, torch.float32, Alone())
    shorter = model.cut(1)
    assert shorter.num_layers == 1
    assert not torch.equal(run(shorter, Alone(), torch.float32).hidden, run(model, Alone(), torch.float32).hidden)
    assert torch.equal(run(model.cut(2), Alone(), torch.float32).hidden, run(model, Alone(), torch.float32).hidden)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_any_attention_gives_what_transformers_gives(folder: Path, dtype: torch.dtype, backend: str) -> None:
    agrees(folder, dtype, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_one_pass_over_prompts_of_different_lengths_is_a_pass_over_each(folder: Path, backend: str) -> None:
    lengths, model = (1, 16, 37, 100), read_model(folder, torch.float32, Alone())
    together = run(model, Alone(), torch.float32, backend, *lengths)
    assert together.logits is not None
    for length, logits in zip(lengths, together.logits.split(lengths), strict=True):
        alone = run(model, Alone(), torch.float32, backend, length).logits
        assert alone is not None
        torch.testing.assert_close(logits, alone[:length], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits, oracle(folder, torch.float32, length).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_that_is_tied_needs_no_weights(tmp_path_factory: pytest.TempPathFactory, tied: bool) -> None:
    folder = tiny_checkpoint(tmp_path_factory.getbasetemp(), tie_word_embeddings=tied)
    with Weights(folder, torch.float32, torch.device("cpu")) as weights:
        assert ("lm_head.weight" in weights.unclaimed()) != tied
    read_model(folder, torch.float32, Alone())


@pytest.mark.parametrize(("rank", "heads", "kv_heads", "intermediate"), [
    (0, range(1), range(1), range(32)), (1, range(1, 2), range(1), range(32, 64)),
    (2, range(2, 3), range(1, 2), range(64, 96)), (3, range(3, 4), range(1, 2), range(96, 128))])
def test_ranks_have_whole_heads_and_copies_of_key_heads(
        folder: Path, rank: int, heads: range, kv_heads: range, intermediate: range) -> None:
    with Weights(folder, torch.float32, torch.device("cpu")) as weights:
        source = Source(read_config(folder), weights, Neighbour(rank, 4, Table(4)))
    assert (source.heads, source.kv_heads, source.intermediate) == (heads, kv_heads, intermediate)


@pytest.mark.parametrize("size", [3, 8])
def test_ranks_that_cannot_share_the_heads_are_refused(folder: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} shards cannot share 4 attention heads with 2 key/value heads"):
        check_ranks(read_config(folder), size)
