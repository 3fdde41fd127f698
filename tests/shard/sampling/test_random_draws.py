import torch

from shard.sampling.random_draws import draw_uniforms

NUM_WORD_VALUES = 2**64


def splitmix64_uniform(key: int, index: int) -> float:
    """Return a draw of the published SplitMix64 generator, in integer arithmetic."""
    word = (key + index * 0x9E3779B97F4A7C15) % NUM_WORD_VALUES
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % NUM_WORD_VALUES
    word = (word ^ word >> 27) * 0x94D049BB133111EB % NUM_WORD_VALUES
    return ((word ^ word >> 31) >> 11) / 2**53


def test_a_draw_is_a_hash_of_key_and_index() -> None:
    keys, indices = [0, 1, 7919, 2**63, NUM_WORD_VALUES - 1], [0, 1, 5, 100_000, 2**31]
    assert draw_uniforms(keys, indices).tolist() == [splitmix64_uniform(*pair)
                                                     for pair in zip(keys, indices, strict=True)]


def test_draws_do_not_depend_on_other_rows() -> None:
    keys, indices = list(range(100)), list(range(500, 600))
    alone = [draw_uniforms([key], [index]).item() for key, index in zip(keys, indices, strict=True)]
    assert draw_uniforms(keys, indices).tolist() == alone


def test_draws_are_uniform_along_a_sequence_and_across_sequences() -> None:
    for draws in (draw_uniforms([3] * 20_000, list(range(20_000))), draw_uniforms(list(range(20_000)), [3] * 20_000)):
        counts = torch.histc(draws, 100, 0.0, 1.0)
        assert ((counts - 200) ** 2 / 200).sum() < 149  # chi-square, 99 degrees of freedom, one in a thousand


def test_consecutive_draws_are_uncorrelated() -> None:
    draws = draw_uniforms([3] * 20_000, list(range(20_000))) - 0.5
    assert abs((draws[1:] * draws[:-1]).mean() * 12) < 0.03
