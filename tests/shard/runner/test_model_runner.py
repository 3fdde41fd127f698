"""Non-finite values fail their own sequence, are cleared from its blocks, and affect no other sequence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers

from router.request import Request

POISON_TOKEN = 500  # a token whose embedding is NaN
NUM_NEW_TOKENS = 12


@pytest.fixture(scope="module", params=[1, 2])
def scheduler_with_workers(request: pytest.FixtureRequest,
                           tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    """Scheduler and workers with so few blocks that they are reused again and again."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("poison"), "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][POISON_TOKEN] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with SchedulerWithWorkers(folder, request.param, num_places=16 * 12, max_total_tokens=100) as harness:
        yield harness


def make_request(prompt_length: int, *, poisoned_at: int | None = None, **request_fields: Any) -> Request:
    generator = torch.Generator().manual_seed(prompt_length)
    prompt = torch.randint(2, POISON_TOKEN, (prompt_length,), generator=generator).tolist()
    if poisoned_at is not None:
        prompt[poisoned_at] = POISON_TOKEN
    return Request(f"{prompt_length} {poisoned_at}", tuple(prompt), NUM_NEW_TOKENS, **request_fields)


@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_poisoned_sequence_fails_alone(scheduler_with_workers: SchedulerWithWorkers, place: int) -> None:
    poisoned, other_requests = make_request(40, poisoned_at=place), [make_request(20), make_request(33)]
    scheduled_requests = [ScheduledRequest(other_requests[0]), ScheduledRequest(poisoned, arrival_step=1),
                          ScheduledRequest(other_requests[1], arrival_step=2)]
    first, failed, second = scheduler_with_workers.run_together(scheduled_requests, max_batch_prefill_tokens=32)
    assert failed.tokens == []
    assert failed.end_reason == "the model's output was not a number"
    assert [first, second] == [scheduler_with_workers.run_alone(request) for request in other_requests]


def test_blocks_of_poisoned_sequences_can_be_reused(scheduler_with_workers: SchedulerWithWorkers) -> None:
    """The whole cache is poisoned once, then read by sequences whose last block is partly unwritten."""
    scheduler_with_workers.run_together([ScheduledRequest(make_request(90, poisoned_at=50)),
                                         ScheduledRequest(make_request(80, poisoned_at=0))])
    healthy = [make_request(length) for length in (5, 18, 35, 50)]
    outputs = scheduler_with_workers.run_together([ScheduledRequest(request) for request in healthy])
    assert all(each.end_reason == "length" for each in outputs)
    assert outputs == [scheduler_with_workers.run_alone(request) for request in healthy]


def test_cancelled_poisoned_sequence_leaves_nothing_behind(scheduler_with_workers: SchedulerWithWorkers) -> None:
    """The poison is in a chunk that yields no token."""
    scheduler_with_workers.run_together([ScheduledRequest(make_request(90, poisoned_at=10), cancel_step=1)],
                                        max_batch_prefill_tokens=32)
    request = make_request(35)
    assert scheduler_with_workers.run_together([ScheduledRequest(request)])[0] == scheduler_with_workers.run_alone(
        request)


def test_loss_of_shards_leaves_nothing_behind(scheduler_with_workers: SchedulerWithWorkers) -> None:
    request = make_request(35)
    outputs = scheduler_with_workers.run_together([ScheduledRequest(make_request(90, poisoned_at=80)),
                                                   ScheduledRequest(request)], loss_steps=(1, 3),
                                                  max_batch_prefill_tokens=32)
    assert outputs[1] == scheduler_with_workers.run_alone(request)


def test_prompt_logprobs_after_the_poison_are_not_returned(scheduler_with_workers: SchedulerWithWorkers) -> None:
    poisoned = scheduler_with_workers.run_together(
        [ScheduledRequest(make_request(40, poisoned_at=35, prompt_logprobs=True))], max_batch_prefill_tokens=32)[0]
    assert all(abs(logprob) < 1e6 for logprob in poisoned.prompt_logprobs.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_prompt_with_nan_logits_fails_with_its_chunk(tmp_path: Path, ranks: int) -> None:
    """Hidden states are finite; only a row of the head is NaN, which no token of the answer needs."""
    folder = make_tiny_checkpoint(tmp_path, "llama")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"][POISON_TOKEN] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with SchedulerWithWorkers(folder, ranks) as harness:
        outputs = harness.run_together([ScheduledRequest(make_request(90, prompt_logprobs=True))],
                                       max_batch_prefill_tokens=32)[0]
    assert outputs.end_reason == "the model's output was not a number"
    assert outputs.prompt_logprobs == {}
