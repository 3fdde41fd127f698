"""A request gets bit-identical tokens and logprobs in any batch and under any schedule.

The router's core schedules random requests together; each result is compared with that of the request alone. The tests
are skipped where the exactness gate finds this machine inexact; `tests/shard/runner/test_batch_invariance_check.py`
tests the gate.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.scheduling.random_schedules import given_random_histories, relaxed_settings
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

HARNESS_OPTIONS = {
    "one rank": {},
    "one rank, two threads": {"threads": 2},
    "two ranks": {"ranks": 2},
    "two ranks, a small cache": {"ranks": 2, "num_places": 16 * 14, "max_total_tokens": 200},
    "a small cache": {"num_places": 16 * 14, "max_total_tokens": 200},
    "bfloat16": {"dtype": "bfloat16"},
    "the best type for bfloat16": {"dtype": "auto"},
    "int8": {"quantize": "int8"},
}
CHECKPOINT_DTYPES = {"bfloat16": "bfloat16", "the best type for bfloat16": "bfloat16"}
LONG_CASES = ("two ranks", "a small cache")  # covered together by "two ranks, a small cache"
HARNESS_PARAMETERS = [pytest.param(name, marks=pytest.mark.long if name in LONG_CASES else ())
                      for name in HARNESS_OPTIONS]


@pytest.fixture(scope="module", params=HARNESS_PARAMETERS)
def scheduler_with_workers(request: pytest.FixtureRequest,
                           tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2",
                                      dtype=CHECKPOINT_DTYPES.get(request.param, "float32"))
    with SchedulerWithWorkers(checkpoint, **HARNESS_OPTIONS[request.param]) as harness:
        if not harness.infos[0].exact:
            pytest.skip("the gate found that answers are not exact on this machine")
        yield harness


@pytest.mark.slow
@settings(relaxed_settings, max_examples=6, derandomize=True)
@given_random_histories
def test_results_are_exact_in_random_histories(scheduler_with_workers: SchedulerWithWorkers,
                                               scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any],
                                               losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(scheduled_requests, loss_steps=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed_settings, max_examples=200)
@given_random_histories
def test_results_are_exact_in_many_random_histories(
        scheduler_with_workers: SchedulerWithWorkers, scheduled_requests: list[ScheduledRequest],
        schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(scheduled_requests, loss_steps=losses, **schedule)
