import torch

from shard.sampling.random_draws import uniforms

WORD = 2**64


def splitmix(key: int, index: int) -> float:
    """Return a draw of the published SplitMix64 generator, in integer arithmetic."""
    word = (key + index * 0x9E3779B97F4A7C15) % WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return ((word ^ word >> 31) >> 11) / 2**53


def test_a_draw_is_a_hash_of_key_and_index() -> None:
    keys, indices = [0, 1, 7919, 2**63, WORD - 1], [0, 1, 5, 100_000, 2**31]
    assert uniforms(keys, indices).tolist() == [splitmix(*pair) for pair in zip(keys, indices, strict=True)]


def test_company_does_not_matter() -> None:
    keys, indices = list(range(100)), list(range(500, 600))
    alone = [uniforms([key], [index]).item() for key, index in zip(keys, indices, strict=True)]
    assert uniforms(keys, indices).tolist() == alone


def test_draws_are_uniform_along_a_sequence_and_across_sequences() -> None:
    for draws in (uniforms([3] * 20_000, list(range(20_000))), uniforms(list(range(20_000)), [3] * 20_000)):
        found = torch.histc(draws, 100, 0.0, 1.0)
        assert ((found - 200) ** 2 / 200).sum() < 149  # chi-square, 99 degrees of freedom, one in a thousand


def test_neighbours_are_unrelated() -> None:
    draws = uniforms([3] * 20_000, list(range(20_000))) - 0.5
    assert abs((draws[1:] * draws[:-1]).mean() * 12) < 0.03
