"""Filters compared with those of transformers, and draws with their probabilities."""

from typing import Any

import pytest
import torch
from support.model_runs.sampling_sequences import make_random_logits
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from shard.sampling import filters
from shard.sampling.best_candidates import NUM_FEW_CANDIDATES, find_candidates, sort_whole_vocabulary
from shard.sampling.filters import (
    FILTERS,
    RemainingCandidates,
    compute_running_sums,
    filter_min_p,
    filter_top_k,
    filter_top_p,
    filter_typical_p,
)
from shard.sampling.logits_with_normalizers import compute_normalizers
from shard.state.sequence import SamplingParams

TRANSFORMERS_WARPERS: dict[str, Any] = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper,
                                        "typical_p": TypicalLogitsWarper, "min_p": MinPLogitsWarper}
FILTER_CASES = [("top_k", 1), ("top_k", 7), ("top_k", 300), ("top_p", 0.1), ("top_p", 0.6), ("top_p", 0.99),
                ("typical_p", 0.2), ("typical_p", 0.9), ("min_p", 0.01), ("min_p", 0.3), ("min_p", 1.0)]


def make_all_candidates(row: Tensor) -> tuple[RemainingCandidates, Tensor]:
    candidates = sort_whole_vocabulary(compute_normalizers(row[None]))
    return RemainingCandidates(candidates), candidates.token_ids[0]


def make_few_candidates(logits: Tensor) -> RemainingCandidates:
    return RemainingCandidates(find_candidates(compute_normalizers(logits), NUM_FEW_CANDIDATES))


def get_kept_ids(rows: RemainingCandidates, ids: Tensor) -> set[int]:
    return set(ids[rows.probabilities[0] > 0].tolist())


def test_every_filter_has_a_sampling_parameter() -> None:
    assert set(FILTERS) == set(TRANSFORMERS_WARPERS) < set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), FILTER_CASES)
@pytest.mark.parametrize("seed", range(5))
def test_filter_keeps_the_same_tokens_as_transformers(name: str, value: float, seed: int) -> None:
    row = make_random_logits(1, 500, seed)[0]
    rows, ids = make_all_candidates(row)
    FILTERS[name](rows, torch.tensor([value]))
    expected = TRANSFORMERS_WARPERS[name](value)(torch.zeros(1, 1, dtype=torch.long), row[None].clone())
    assert get_kept_ids(rows, ids) == set(expected[0].isfinite().nonzero().flatten().tolist())


@pytest.mark.parametrize("seed", range(5))
def test_filters_are_applied_to_what_earlier_ones_kept(seed: int) -> None:
    row = make_random_logits(1, 500, seed)[0]
    rows, ids = make_all_candidates(row)
    expected = row[None].clone()
    for name, value in {"top_k": 100, "top_p": 0.9, "typical_p": 0.8, "min_p": 0.05}.items():
        FILTERS[name](rows, torch.tensor([value]))
        expected = TRANSFORMERS_WARPERS[name](value)(torch.zeros(1, 1, dtype=torch.long), expected)
    assert get_kept_ids(rows, ids) == set(expected[0].isfinite().nonzero().flatten().tolist())
    torch.testing.assert_close(rows.probabilities[0] / rows.total_probability, expected[0].softmax(-1)[ids].double())


@pytest.mark.parametrize("name", FILTERS)
def test_disabled_filter_keeps_everything(name: str) -> None:
    logits = make_random_logits(2, 500)
    rows, plain = make_few_candidates(logits), make_few_candidates(logits)
    FILTERS[name](rows, torch.tensor([0.5 if name != "top_k" else 3, 0]))
    assert torch.equal(rows.probabilities[1], plain.probabilities[1])
    assert (rows.total_probability[1], rows.is_complete[1], rows.is_decided[1],
            rows.is_filtered[1]) == (1, False, True, False)
    assert rows.is_filtered[0]


def test_equal_tokens_are_dropped_from_the_highest_id() -> None:
    for apply_filter, value in ((filter_top_k, 3), (filter_top_p, 0.029), (filter_typical_p, 0.029)):
        rows, ids = make_all_candidates(torch.zeros(100))
        apply_filter(rows, torch.tensor([value]))
        assert get_kept_ids(rows, ids) == {0, 1, 2}


def test_filter_that_ends_within_the_candidates_is_decided() -> None:
    logits = make_random_logits(1, 1000, scale=5.0)
    for apply_filter, value in ((filter_top_k, 64), (filter_top_p, 0.5), (filter_min_p, 0.1)):
        rows = make_few_candidates(logits)
        apply_filter(rows, torch.tensor([value]))
        assert rows.is_decided.item()


def test_filter_that_goes_beyond_the_candidates_is_not_decided() -> None:
    logits = make_random_logits(1, 1000, scale=0.1)
    for apply_filter, value in ((filter_top_k, 65), (filter_top_p, 0.5), (filter_typical_p, 0.5), (filter_min_p, 0.1)):
        rows = make_few_candidates(logits)
        apply_filter(rows, torch.tensor([value]))
        assert not rows.is_decided.item()


def test_fraction_of_one_keeps_everything() -> None:
    rows, _ = make_all_candidates(make_random_logits(1, 500)[0])
    for apply_filter in (filter_top_p, filter_typical_p):
        apply_filter(rows, torch.tensor([1.0]))
    assert (rows.probabilities > 0).all()
    assert not rows.is_filtered.item()


def test_draw_inverts_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    rows, _ = make_all_candidates(logits)
    assert [rows.draw_ranks(torch.tensor([u])).item() for u in (0.0, 0.49, 0.51, 0.79, 0.81)] == [0, 0, 1, 1, 2]


def test_dropped_tokens_are_never_drawn() -> None:
    rows, _ = make_all_candidates(torch.zeros(10))
    rows.keep_only(torch.tensor([True]), (rows.ranks % 3 == 1)[None], torch.tensor([True]))
    drawn = {rows.draw_ranks(torch.tensor([u / 100], dtype=torch.float64)).item() for u in range(100)}
    assert drawn == {1, 4, 7}


def test_missing_probability_goes_to_the_best_token() -> None:
    rows, _ = make_all_candidates(torch.zeros(10))
    rows.probabilities *= 1 - 1e-9
    assert rows.draw_ranks(torch.tensor([1 - 1e-12], dtype=torch.float64)).item() == 0


def test_a_draw_beyond_the_candidates_is_not_decided() -> None:
    rows = make_few_candidates(make_random_logits(2, 1000, scale=1.0))
    rows.draw_ranks(torch.tensor([0.01, 0.99], dtype=torch.float64))
    assert rows.is_decided.tolist() == [True, False]


@pytest.mark.parametrize("width", [1, 2, 3, 64, 65, 4097])
def test_running_sums_by_doubling_match_cumsum(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force the doubling algorithm; the values are integers, so that every order of addition is exact."""
    values = torch.randint(0, 99, (3, width), generator=torch.Generator().manual_seed(width)).double()
    expected = values.cumsum(-1)
    monkeypatch.setattr(filters, "SEQUENTIAL_SUM_DEVICES", ())
    assert torch.equal(compute_running_sums(values), expected)
