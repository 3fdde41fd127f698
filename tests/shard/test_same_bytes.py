"""A request gets bit-identical tokens and logprobs in any batch and under any schedule.

The router's core schedules random requests together; each result is compared with that of the request alone. The tests
are skipped where the exactness gate finds this machine inexact; `tests/shard/runner/test_exactness.py` tests the gate.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import tiny_checkpoint

from tests.shard.histories import histories, relaxed

LOOMS = {
    "one rank": {},
    "one rank, two threads": {"threads": 2},
    "two ranks": {"ranks": 2},
    "two ranks, a small cache": {"ranks": 2, "num_places": 16 * 14, "max_total_tokens": 200},
    "a small cache": {"num_places": 16 * 14, "max_total_tokens": 200},
    "bfloat16": {"dtype": "bfloat16"},
    "the best type for bfloat16": {"dtype": "auto"},
    "int8": {"quantize": "int8"},
}
STORED = {"bfloat16": "bfloat16", "the best type for bfloat16": "bfloat16"}
LONG = ("two ranks", "a small cache")  # covered together by "two ranks, a small cache"
PARAMS = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in LOOMS]


@pytest.fixture(scope="module", params=PARAMS)
def loom(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", dtype=STORED.get(request.param, "float32"))
    with Loom(model, **LOOMS[request.param]) as loom:
        if not loom.infos[0].exact:
            pytest.skip("the gate found that answers are not exact on this machine")
        yield loom


@pytest.mark.slow
@settings(relaxed, max_examples=12, derandomize=True)
@histories
def test_company_does_not_matter(loom: Loom, woven: list[Thread], schedule: dict[str, Any],
                                 losses: tuple[int, ...]) -> None:
    loom.compare(woven, losses=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed, max_examples=200)
@histories
def test_company_does_not_matter_for_long(loom: Loom, woven: list[Thread], schedule: dict[str, Any],
                                          losses: tuple[int, ...]) -> None:
    loom.compare(woven, losses=losses, **schedule)
