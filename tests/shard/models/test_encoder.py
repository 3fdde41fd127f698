"""Behaviour common to all encoders: token positions, ranks, int8 weights."""

import pytest
import torch
from support.small_checkpoints import tiny_encoder

from shard.models.encoder import EncoderConfig, lay_out
from shard.parallel.group import Alone
from shard.state.columns import Text
from tests.shard.encoders import TEXTS, agrees, read_model, run
from tests.shard.forward import CPU
from tests.shard.side_by_side import side_by_side


def config(padding: int | None = None) -> EncoderConfig:
    return EncoderConfig(
        architecture="", vocabulary_size=9, hidden_size=4, intermediate_size=4, num_layers=1, num_heads=1,
        num_kv_heads=1, head_dim=4, norm_epsilon=1e-5, max_positions=8, dtype=torch.float32, approximate="none",
        padding=padding)


def test_every_text_begins_at_the_first_position() -> None:
    inputs = lay_out([Text([5, 6, 7]), Text([8]), Text([5, 6])], config(), CPU)
    assert inputs.tokens.tolist() == [5, 6, 7, 8, 5, 6]
    assert inputs.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert inputs.lengths == [3, 1, 2]


def test_behind_a_padding_token_positions_begin_and_it_takes_none() -> None:
    assert config(padding=1).positions([5, 6, 7]) == [2, 3, 4]
    assert config(padding=1).positions([5, 1, 7, 1, 1]) == [2, 1, 3, 1, 1]
    assert config(padding=0).positions([0, 7]) == [0, 1]


def test_heads_that_cannot_be_shared_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    with pytest.raises(ValueError, match="3 shards cannot share 4 attention heads"):
        side_by_side(3, lambda group: read_model(folder, torch.float32, group))


def test_two_ranks_hold_the_same_states(tmp_path_factory: pytest.TempPathFactory) -> None:
    agrees(tiny_encoder(tmp_path_factory.getbasetemp(), "bert"), torch.float32, 2)


def test_company_does_not_matter_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert")

    def told(group: Alone) -> bool:
        model = read_model(folder, torch.float32, group)
        together = run(model, TEXTS)
        return all(torch.equal(run(model, [each])[0], among) for each, among in zip(TEXTS, together, strict=True))

    assert side_by_side(2, told) == [True, True]


def test_weights_kept_as_int8_are_near(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_encoder(tmp_path_factory.getbasetemp(), "bert")
    exact, near = (run(read_model(folder, torch.float32, Alone(), how), TEXTS) for how in ("", "int8"))
    for one, other in zip(exact, near, strict=True):
        assert torch.cosine_similarity(one, other).min() > 0.99
