"""Behaviour common to all encoders: token positions, ranks, int8 weights."""

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_encoder
from support.model_runs.decoder_reference import CPU
from support.model_runs.encoder_reference import (
    RANDOM_TEXTS,
    check_encoder_matches_transformers,
    load_encoder_model,
    run_encoder,
)
from support.model_runs.ranks_in_threads import run_on_ranks

from shard.models.encoder import EncoderConfig, build_encoder_inputs
from shard.parallel.group import SingleRankGroup
from shard.state.sequence import PoolingText


def make_config(padding_id: int | None = None) -> EncoderConfig:
    return EncoderConfig(
        architecture="", vocabulary_size=9, hidden_size=4, intermediate_size=4, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=4, norm_epsilon=1e-5, max_positions=8, dtype=torch.float32, gelu_approximate="none",
        padding_id=padding_id)


def test_every_text_begins_at_the_first_position() -> None:
    inputs = build_encoder_inputs([PoolingText([5, 6, 7]), PoolingText([8]), PoolingText([5, 6])], make_config(), CPU)
    assert inputs.tokens.tolist() == [5, 6, 7, 8, 5, 6]
    assert inputs.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert inputs.text_lengths == [3, 1, 2]


def test_padding_tokens_take_no_position() -> None:
    assert make_config(padding_id=1).compute_positions([5, 6, 7]) == [2, 3, 4]
    assert make_config(padding_id=1).compute_positions([5, 1, 7, 1, 1]) == [2, 1, 3, 1, 1]
    assert make_config(padding_id=0).compute_positions([0, 7]) == [0, 1]


def test_rank_counts_that_cannot_split_the_heads_are_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    with pytest.raises(ValueError, match="3 shards cannot share 4 attention heads"):
        run_on_ranks(3, lambda group: load_encoder_model(folder, torch.float32, group))


def test_two_ranks_match_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_encoder_matches_transformers(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert"), torch.float32, 2)


def test_result_does_not_depend_on_other_texts_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")

    def compare_with_single_texts(group: SingleRankGroup) -> bool:
        model = load_encoder_model(folder, torch.float32, group)
        batched_outputs = run_encoder(model, RANDOM_TEXTS)
        return all(torch.equal(run_encoder(model, [each])[0], among)
                   for each, among in zip(RANDOM_TEXTS, batched_outputs, strict=True))

    assert run_on_ranks(2, compare_with_single_texts) == [True, True]


def test_int8_weights_give_similar_outputs(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    exact, quantized = (run_encoder(load_encoder_model(folder, torch.float32, SingleRankGroup(), how), RANDOM_TEXTS)
                        for how in ("", "int8"))
    for one, other in zip(exact, quantized, strict=True):
        assert torch.cosine_similarity(one, other).min() > 0.99
