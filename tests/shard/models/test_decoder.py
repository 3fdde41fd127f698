from pathlib import Path

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.decoder_reference import (
    check_decoder_matches_transformers,
    load_decoder_model,
    run_forward,
    run_transformers_model,
)
from support.model_runs.ranks_in_threads import InProcessExchange, InProcessRankGroup

from shard.checkpoint.reader import CheckpointReader
from shard.models.decoder import ModelLoader, check_attention_head_split
from shard.models.registry import load_model_config
from shard.parallel.group import SingleRankGroup


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp())


def test_model_reports_the_dimensions_of_its_cache(checkpoint: Path) -> None:
    model = load_decoder_model(checkpoint, torch.float32, SingleRankGroup())
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (2, 2, 16)


def test_truncated_model_runs_only_its_first_layers(checkpoint: Path) -> None:
    model = load_decoder_model(checkpoint, torch.float32, SingleRankGroup())
    truncated = model.copy_first_layers(1)
    assert truncated.num_layers == 1
    assert not torch.equal(run_forward(truncated, SingleRankGroup(), torch.float32).hidden,
                           run_forward(model, SingleRankGroup(), torch.float32).hidden)
    assert torch.equal(run_forward(model.copy_first_layers(2), SingleRankGroup(), torch.float32).hidden,
                       run_forward(model, SingleRankGroup(), torch.float32).hidden)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_attention_backend_matches_transformers(checkpoint: Path, dtype: torch.dtype, backend: str) -> None:
    check_decoder_matches_transformers(checkpoint, dtype, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_batched_prompts_have_the_logits_of_single_prompts(checkpoint: Path, backend: str) -> None:
    lengths, model = (1, 16, 37, 100), load_decoder_model(checkpoint, torch.float32, SingleRankGroup())
    batched = run_forward(model, SingleRankGroup(), torch.float32, backend, *lengths)
    assert batched.logits is not None
    for length, logits in zip(lengths, batched.logits.split(lengths), strict=True):
        alone = run_forward(model, SingleRankGroup(), torch.float32, backend, length).logits
        assert alone is not None
        torch.testing.assert_close(logits, alone[:length], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(logits, run_transformers_model(checkpoint, torch.float32, length).logits, rtol=1e-4,
                                   atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_head_needs_no_weights(tmp_path_factory: pytest.TempPathFactory, tied: bool) -> None:
    folder = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), tie_word_embeddings=tied)
    with CheckpointReader(folder, torch.float32, torch.device("cpu")) as weights:
        assert ("lm_head.weight" in weights.list_unclaimed_names()) != tied
    load_decoder_model(folder, torch.float32, SingleRankGroup())


@pytest.mark.parametrize(("rank", "heads", "kv_heads", "intermediate"), [
    (0, range(1), range(1), range(32)), (1, range(1, 2), range(1), range(32, 64)),
    (2, range(2, 3), range(1, 2), range(64, 96)), (3, range(3, 4), range(1, 2), range(96, 128))])
def test_ranks_have_whole_heads_and_replicated_kv_heads(
        checkpoint: Path, rank: int, heads: range, kv_heads: range, intermediate: range) -> None:
    with CheckpointReader(checkpoint, torch.float32, torch.device("cpu")) as weights:
        source = ModelLoader(load_model_config(checkpoint), weights, InProcessRankGroup(rank, 4, InProcessExchange(4)))
    assert (source.head_range, source.kv_head_range, source.intermediate_range) == (heads, kv_heads, intermediate)


@pytest.mark.parametrize("size", [3, 8])
def test_rank_counts_that_cannot_split_the_heads_are_rejected(checkpoint: Path, size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} shards cannot share 4 attention heads with 2 key/value heads"):
        check_attention_head_split(load_model_config(checkpoint), size)
