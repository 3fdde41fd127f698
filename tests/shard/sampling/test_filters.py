"""Filters compared with those of transformers, and draws with their probabilities."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

from shard.sampling import filters
from shard.sampling.candidates import FEW, Finder, all_of
from shard.sampling.filters import FILTERS, Survivors, min_p, running, top_k, top_p, typical_p
from shard.state.sequence import Sampling
from tests.shard.asking import random_logits

ORACLES: dict[str, Any] = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "typical_p": TypicalLogitsWarper,
                           "min_p": MinPLogitsWarper}
CASES = [("top_k", 1), ("top_k", 7), ("top_k", 300), ("top_p", 0.1), ("top_p", 0.6), ("top_p", 0.99),
         ("typical_p", 0.2), ("typical_p", 0.9), ("min_p", 0.01), ("min_p", 0.3), ("min_p", 1.0)]


def survivors(row: Tensor) -> tuple[Survivors, Tensor]:
    candidates = all_of(row, row.log_softmax(-1))
    return Survivors(candidates), candidates.ids[0]


def few(logits: Tensor) -> Survivors:
    return Survivors(Finder(logits.shape[-1]).candidates(logits, logits.log_softmax(-1), FEW))


def kept(rows: Survivors, ids: Tensor) -> set[int]:
    return set(ids[rows.chances[0] > 0].tolist())


def test_every_filter_is_asked_for_by_a_parameter() -> None:
    assert set(FILTERS) == set(ORACLES) < set(Sampling.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), CASES)
@pytest.mark.parametrize("seed", range(5))
def test_a_filter_keeps_what_that_of_transformers_keeps(name: str, value: float, seed: int) -> None:
    row = random_logits(1, 500, seed)[0]
    rows, ids = survivors(row)
    FILTERS[name](rows, torch.tensor([value]))
    expected = ORACLES[name](value)(torch.zeros(1, 1, dtype=torch.long), row[None].clone())
    assert kept(rows, ids) == set(expected[0].isfinite().nonzero().flatten().tolist())


@pytest.mark.parametrize("seed", range(5))
def test_each_filter_goes_by_what_the_ones_before_it_left(seed: int) -> None:
    row = random_logits(1, 500, seed)[0]
    rows, ids = survivors(row)
    expected = row[None].clone()
    for name, value in {"top_k": 100, "top_p": 0.9, "typical_p": 0.8, "min_p": 0.05}.items():
        FILTERS[name](rows, torch.tensor([value]))
        expected = ORACLES[name](value)(torch.zeros(1, 1, dtype=torch.long), expected)
    assert kept(rows, ids) == set(expected[0].isfinite().nonzero().flatten().tolist())
    torch.testing.assert_close(rows.chances[0] / rows.total, expected[0].softmax(-1)[ids].double())


@pytest.mark.parametrize("name", FILTERS)
def test_who_does_not_ask_keeps_everything(name: str) -> None:
    logits = random_logits(2, 500)
    rows, plain = few(logits), few(logits)
    FILTERS[name](rows, torch.tensor([0.5 if name != "top_k" else 3, 0]))
    assert torch.equal(rows.chances[1], plain.chances[1])
    assert (rows.total[1], rows.complete[1], rows.decided[1], rows.filtered[1]) == (1, False, True, False)
    assert rows.filtered[0]


def test_equal_ones_leave_from_the_highest_id() -> None:
    for drop, value in ((top_k, 3), (top_p, 0.029), (typical_p, 0.029)):
        rows, ids = survivors(torch.zeros(100))
        drop(rows, torch.tensor([value]))
        assert kept(rows, ids) == {0, 1, 2}


def test_what_ends_within_the_candidates_is_decided() -> None:
    logits = random_logits(1, 1000, spread=5.0)
    for drop, value in ((top_k, 64), (top_p, 0.5), (min_p, 0.1)):
        rows = few(logits)
        drop(rows, torch.tensor([value]))
        assert rows.decided.item()


def test_what_goes_beyond_the_candidates_is_not() -> None:
    logits = random_logits(1, 1000, spread=0.1)
    for drop, value in ((top_k, 65), (top_p, 0.5), (typical_p, 0.5), (min_p, 0.1)):
        rows = few(logits)
        drop(rows, torch.tensor([value]))
        assert not rows.decided.item()


def test_a_share_of_one_keeps_all() -> None:
    rows, _ = survivors(random_logits(1, 500)[0])
    for drop in (top_p, typical_p):
        drop(rows, torch.tensor([1.0]))
    assert (rows.chances > 0).all()
    assert not rows.filtered.item()


def test_a_draw_takes_the_first_that_reaches_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    rows, _ = survivors(logits)
    assert [rows.draw(torch.tensor([u])).item() for u in (0.0, 0.49, 0.51, 0.79, 0.81)] == [0, 0, 1, 1, 2]


def test_what_was_dropped_is_never_drawn() -> None:
    rows, _ = survivors(torch.zeros(10))
    rows.keep(torch.tensor([True]), (rows.ranks % 3 == 1)[None], torch.tensor([True]))
    drawn = {rows.draw(torch.tensor([u / 100], dtype=torch.float64)).item() for u in range(100)}
    assert drawn == {1, 4, 7}


def test_what_chances_lack_to_one_goes_to_the_best() -> None:
    rows, _ = survivors(torch.zeros(10))
    rows.chances *= 1 - 1e-9
    assert rows.draw(torch.tensor([1 - 1e-12], dtype=torch.float64)).item() == 0


def test_a_draw_beyond_the_candidates_is_not_decided() -> None:
    rows = few(random_logits(2, 1000, spread=1.0))
    rows.draw(torch.tensor([0.01, 0.99], dtype=torch.float64))
    assert rows.decided.tolist() == [True, False]


@pytest.mark.parametrize("width", [1, 2, 3, 64, 65, 4097])
def test_sums_up_to_each_place_are_the_same_by_doubling(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Force the doubling algorithm; the values are integers, so that every order of addition is exact."""
    values = torch.randint(0, 99, (3, width), generator=torch.Generator().manual_seed(width)).double()
    expected = values.cumsum(-1)
    monkeypatch.setattr(filters, "SEQUENTIAL", ())
    assert torch.equal(running(values), expected)
