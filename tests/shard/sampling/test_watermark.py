import torch

from shard.sampling.watermark import green_tokens, watermark
from tests.shard.asking import asking, random_logits


def green(previous: int, size: int) -> set[int]:
    torch.manual_seed(15485863 * previous)
    return set(torch.randperm(size)[:size // 2].tolist())


def test_the_favoured_half_is_the_one_that_detectors_look_for() -> None:
    with torch.random.fork_rng():
        for previous in (0, 1, 77, 151_000):
            assert set(green_tokens(previous, 1001).tolist()) == green(previous, 1001)


def test_each_row_goes_by_its_own_last_token() -> None:
    logits = random_logits(3, 512)
    before = logits.clone()
    watermark(logits, [0, 2], [asking(prompt=[5, 9]), asking(prompt=[1] * 40, output=[7])])
    for row, previous in ((0, 9), (2, 7)):
        favoured = set(((logits - before)[row] > 1.9).nonzero().flatten().tolist())
        assert favoured == set(green_tokens(previous, 512).tolist())
    assert torch.equal(logits[1], before[1])


def test_green_lists_of_different_tokens_share_what_chance_lets_them() -> None:
    lists = [set(green_tokens(previous, 2000).tolist()) for previous in range(20)]
    shared = [len(a & b) for a in lists for b in lists if a is not b]
    assert 490 < sum(shared) / len(shared) < 510
    assert min(shared) > 430
    assert max(shared) < 570
