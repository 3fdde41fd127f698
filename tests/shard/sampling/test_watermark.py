import torch
from support.model_runs.sampling_sequences import make_random_logits, make_sampling_sequence

from shard.sampling.watermark import apply_watermark, choose_green_tokens


def compute_detector_green_tokens(previous_token: int, vocabulary_size: int) -> set[int]:
    torch.manual_seed(15485863 * previous_token)
    return set(torch.randperm(vocabulary_size)[:vocabulary_size // 2].tolist())


def test_green_tokens_are_those_that_detectors_look_for() -> None:
    with torch.random.fork_rng():
        for previous in (0, 1, 77, 151_000):
            assert set(choose_green_tokens(previous, 1001).tolist()) == compute_detector_green_tokens(previous, 1001)


def test_each_row_is_watermarked_by_its_own_last_token() -> None:
    logits = make_random_logits(3, 512)
    before = logits.clone()
    apply_watermark(logits, [0, 2],
                    [make_sampling_sequence(prompt=[5, 9]), make_sampling_sequence(prompt=[1] * 40, output=[7])])
    for row, previous in ((0, 9), (2, 7)):
        boosted = set(((logits - before)[row] > 1.9).nonzero().flatten().tolist())
        assert boosted == set(choose_green_tokens(previous, 512).tolist())
    assert torch.equal(logits[1], before[1])


def test_green_lists_of_different_tokens_overlap_by_chance_only() -> None:
    lists = [set(choose_green_tokens(previous, 2000).tolist()) for previous in range(20)]
    shared = [len(a & b) for a in lists for b in lists if a is not b]
    assert 490 < sum(shared) / len(shared) < 510
    assert min(shared) > 430
    assert max(shared) < 570
