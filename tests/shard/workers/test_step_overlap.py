"""Steps that start before the previous step's results are known return the same results as steps that waited.

The router's core drives a worker whose steps are replayed without a GPU, by calling the captured functions again.
Results are compared bit by bit, so the tests are skipped where the exactness gate finds this machine inexact.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import settings
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.model_runs.replayable_model import replay_on_cpu
from support.scheduling.random_schedules import given_device_sampling_histories, relaxed_settings
from support.shards.protocol_messages import (
    SequenceRow,
    make_decode,
    make_filter,
    make_grants,
    make_join,
    make_keep,
    make_prefill,
)
from support.shards.scheduler_with_workers import WORKER_METHODS, ScheduledRequest, SchedulerWithWorkers

from router.request import Request, SamplingParams
from shard.errors import RejectedMessage
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.runner.cuda_graphs import InFlightReplay
from shard.workers import step_overlap

GREEDY_SAMPLING = SamplingParams()
RANDOM_SAMPLING = SamplingParams(temperature=1.0, top_p=0.9)


@pytest.fixture(scope="module")
def overlapping_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with pytest.MonkeyPatch.context() as patch:
        replay_on_cpu(patch)
        overlapping = SchedulerWithWorkers(checkpoint)  # no longer, so that the other fixture's worker captures nothing
    with overlapping as harness:
        if not harness.infos[0].exact:
            pytest.skip("the gate found that answers are not exact on this machine")
        yield harness


@pytest.fixture(scope="module")
def waiting_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    """Scheduler and a worker that starts no step before the previous one has ended."""
    with SchedulerWithWorkers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")) as harness:
        yield harness


@pytest.fixture(autouse=True)
def disable_overlap_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next step start ahead even after a step that had to be rerun."""
    monkeypatch.setattr(step_overlap, "NUM_SUSPENDED_STEPS", 0)


@pytest.mark.slow
@settings(relaxed_settings, max_examples=10, derandomize=True)
@given_device_sampling_histories
def test_overlapped_steps_equal_waiting_steps(
        overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers,
        scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    outputs = overlapping_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)
    assert outputs == waiting_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed_settings, max_examples=400)
@given_device_sampling_histories
def test_overlapped_steps_equal_waiting_steps_in_many_histories(
        overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers,
        scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    outputs = overlapping_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)
    assert outputs == waiting_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)


@pytest.mark.slow
@settings(relaxed_settings, max_examples=10, derandomize=True)
@given_device_sampling_histories
def test_rerun_overlapped_steps_equal_waiting_steps(
        overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers,
        scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    check_rerun_steps(overlapping_workers, waiting_workers, scheduled_requests, schedule, losses)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(relaxed_settings, max_examples=200)
@given_device_sampling_histories
def test_rerun_overlapped_steps_equal_waiting_steps_in_many_histories(
        overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers,
        scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    check_rerun_steps(overlapping_workers, waiting_workers, scheduled_requests, schedule, losses)


def check_rerun_steps(overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers,
                      scheduled_requests: list[ScheduledRequest], schedule: dict[str, Any],
                      losses: tuple[int, ...]) -> None:
    """Run the steps of some sampled tokens again, as if these were not valid."""
    random, original_choices = Random(len(scheduled_requests)), InFlightReplay.get_sampled_tokens

    def return_choices_sometimes(self: InFlightReplay) -> Any:
        return original_choices(self) if random.random() < 0.6 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InFlightReplay, "get_sampled_tokens", return_choices_sometimes)
        outputs = overlapping_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)
    assert outputs == waiting_workers.run_together(scheduled_requests, loss_steps=losses, **schedule)


def test_step_does_not_overwrite_the_blocks_of_a_sequence_that_ends_with_a_step_under_way(
        overlapping_workers: SchedulerWithWorkers, waiting_workers: SchedulerWithWorkers) -> None:
    """The step under way may be run again, and must then not find the keys of another sequence in the block."""
    ending = Request("ending", (196,), 2)
    growing = Request("growing", (196, 311, 235, 392, 225, 461, 69, 165, 399, 245, 103, 148, 338, 11, 180), 3)
    requests = [ScheduledRequest(ending, arrival_step=1), ScheduledRequest(growing, arrival_step=1)]
    schedule = {"prefill_policy": "mixed", "look_ahead": 2, "max_batch_prefill_tokens": 32, "max_batch_size": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InFlightReplay, "get_sampled_tokens", lambda _: None)
        outputs = overlapping_workers.run_together(requests, **schedule)
    assert outputs == waiting_workers.run_together(requests, **schedule)


def make_request(number: int, sampling: SamplingParams = GREEDY_SAMPLING, prompt_length: int = 20,
                 max_new_tokens: int = 12) -> Request:
    prompt = torch.randint(2, 512, (prompt_length,), generator=torch.Generator().manual_seed(number)).tolist()
    return Request(str(number), tuple(prompt), max_new_tokens, sampling_key=number, sampling=sampling)


@pytest.mark.parametrize(("look_ahead", "ahead"), [(1, False), (2, True)])
def test_step_starts_ahead_only_if_it_is_sent_early(overlapping_workers: SchedulerWithWorkers,
                                                    monkeypatch: pytest.MonkeyPatch, look_ahead: int,
                                                    ahead: bool) -> None:
    """A step starts ahead only if the router sends it early, as with a `look_ahead` of 2."""
    depths, worker = [], overlapping_workers.workers[0]
    original_decode = type(worker).decode

    def decode_and_record_depth(self: Any, request: pb.DecodeRequest) -> Any:
        answer = original_decode(self, request)
        depths.append(len(self._overlap_queue._in_flight_steps) if isinstance(answer, PendingResult) else 0)
        return answer

    monkeypatch.setattr(type(worker), "decode", decode_and_record_depth)
    requests = [make_request(1), make_request(2, RANDOM_SAMPLING), make_request(3, prompt_length=33, max_new_tokens=20)]
    overlapping_workers.run_and_compare([ScheduledRequest(request) for request in requests], look_ahead=1)
    depths.clear()
    overlapping_workers.run_and_compare([ScheduledRequest(request) for request in requests], look_ahead=look_ahead)
    assert set(depths) == ({1, 2} if ahead else {1})


def test_requests_that_cannot_overlap_are_exact_too(overlapping_workers: SchedulerWithWorkers) -> None:
    scheduled_requests = [ScheduledRequest(make_request(1)),
                          ScheduledRequest(make_request(2, SamplingParams(repetition_penalty=1.2), max_new_tokens=5))]
    overlapping_workers.run_and_compare(scheduled_requests, look_ahead=2)


def test_worker_without_captured_steps_has_no_overlap_queue(overlapping_workers: SchedulerWithWorkers,
                                                            waiting_workers: SchedulerWithWorkers) -> None:
    assert overlapping_workers.workers[0]._overlap_queue is not None
    assert waiting_workers.workers[0]._overlap_queue is None


# ---------------------------------------------------------------------------------------------------------------------
# Message by message


class OverlappedBatch:
    """A batch of one worker whose decode steps all start before the previous one has ended."""

    def __init__(self, harness: SchedulerWithWorkers, *rows: SequenceRow) -> None:
        self.harness, self.worker = harness, harness.workers[0]
        harness.start_next_epoch()
        self._order = 1
        harness.send_message(make_prefill(1, *rows), 1)

    def send(self, message: Any) -> Any:
        self._order += 1
        message.epoch, message.order = self.harness._epoch, self._order
        return self.harness.call_all_ranks(WORKER_METHODS[type(message)], message)[0]

    def wait_for_answer(self, answer: Any) -> tuple[dict[int, int], dict[int, int]]:
        """Return tokens and failures by sequence."""
        step_answer = self.harness.wait_for_answer(answer)
        return (dict(zip(step_answer.sequences, step_answer.tokens, strict=True)),
                dict(zip(step_answer.failed, step_answer.failures, strict=True)))

    def fill_cache_with_nan(self, sequence_id: int) -> None:
        """Overwrite the values that a sequence has in the cache with NaN."""
        cache, sequence = self.worker._cache, self.worker.shard_state.sequences[sequence_id]
        for rows in cache.values:
            rows[cache.list_slots(sequence.blocks, 0, len(sequence.tokens) - 1)] = torch.nan

    @property
    def blocks_with_nan(self) -> set[int]:
        """Blocks that hold a non-finite value."""
        cache = self.worker._cache
        return {block for rows in cache.values for block in range(cache.num_blocks)
                if not rows[cache.list_slots([block], 0, cache.block_size)].isfinite().all()}


PROMPTS = {number: torch.randint(2, 512, (15,), generator=torch.Generator().manual_seed(number)).tolist()
           for number in (1, 2, 3)}
SEQUENCE_ROWS = [SequenceRow(number, tokens, [2 * number, 2 * number + 1]) for number, tokens in PROMPTS.items()]


def test_failing_sequence_fails_alone_and_leaves_nothing_behind(overlapping_workers: SchedulerWithWorkers) -> None:
    """The failing step fills a block; the next step has already started with the sequence, in another block."""
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    expected = [batch.wait_for_answer(batch.send(make_decode(1)))[0] for _ in range(3)]
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    batch.fill_cache_with_nan(2)
    first, second = batch.send(make_decode(1)), batch.send(make_decode(1))
    for number, answer in enumerate((first, second)):
        tokens, failures = batch.wait_for_answer(answer)
        assert tokens == {sequence_id: expected[number][sequence_id] for sequence_id in (1, 3)}
        assert failures == {2: pb.NON_FINITE}
    tokens, _ = batch.wait_for_answer(batch.send(make_decode(1)))
    assert tokens == {sequence_id: expected[2][sequence_id] for sequence_id in (1, 3)}
    assert not batch.blocks_with_nan
    assert list(overlapping_workers.workers[0].shard_state.block_usage.is_full[2:7:2]) == [True, False, True]


def test_failing_sequence_fails_alone_in_a_step_that_had_to_wait(overlapping_workers: SchedulerWithWorkers) -> None:
    """The second step waits because a sequence joins that needs more than the device samples."""
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    batch.send(make_prefill(2, SequenceRow(9, [7] * 4, [9], top_n_tokens=2)))
    batch.fill_cache_with_nan(2)
    first, second = batch.send(make_decode(1)), batch.send(make_decode(1, join=make_join(2)))
    for answer, expected_ids in ((first, {1, 3}), (second, {1, 3, 9})):
        tokens, failures = batch.wait_for_answer(answer)
        assert (set(tokens), failures) == (expected_ids, {2: pb.NON_FINITE})


def test_blocks_of_a_removed_sequence_can_be_given_to_another(overlapping_workers: SchedulerWithWorkers) -> None:
    """The leaving sequence's block was just filled; the result is the same whether the running step is rerun or not."""
    rows = [SequenceRow(1, PROMPTS[1], [2]), SequenceRow(2, [*PROMPTS[2], 7], [4, 5])]

    def run_steps(*, reruns: bool) -> Any:
        batch, answers = OverlappedBatch(overlapping_workers, *rows), []
        with pytest.MonkeyPatch.context() as patch:
            if reruns:
                patch.setattr(InFlightReplay, "get_sampled_tokens", lambda _: None)
            first = batch.send(make_decode(1))  # fills block 2
            second = batch.send(make_decode(1, keep=make_keep(2), grants=make_grants(s2=[2])))
            full = overlapping_workers.workers[0].shard_state.block_usage.is_full[2]
            answers = [batch.wait_for_answer(first), batch.wait_for_answer(second)]
            for _ in range(14):
                answers.append(batch.wait_for_answer(batch.send(make_decode(1))))
            third, fourth = batch.send(make_decode(1)), batch.send(make_decode(1))
            answers += [batch.wait_for_answer(third), batch.wait_for_answer(fourth)]
        blocks = overlapping_workers.workers[0].shard_state.block_usage
        return full, answers, list(blocks.is_full[:6]), list(blocks.num_holders[:6])

    assert run_steps(reruns=False) == run_steps(reruns=True)
    assert not run_steps(reruns=True)[0]


@pytest.mark.parametrize("reruns", [False, True])
def test_sequence_without_room_returns_its_last_token_first(
        overlapping_workers: SchedulerWithWorkers, monkeypatch: pytest.MonkeyPatch, reruns: bool) -> None:
    """NO_ROOM is the answer of the next step, which starts while the step with the last token is still running."""
    shard_state = overlapping_workers.workers[0].shard_state
    monkeypatch.setattr(shard_state, "limits", replace(shard_state.limits, max_positions=16))
    batch = OverlappedBatch(overlapping_workers, SequenceRow(1, [5] * 15, [0, 1]), SequenceRow(2, [6] * 9, [2, 3]))
    if reruns:
        monkeypatch.setattr(InFlightReplay, "get_sampled_tokens", lambda _: None)
    first, second = batch.send(make_decode(1)), batch.send(make_decode(1))
    tokens, failures = batch.wait_for_answer(first)
    assert (set(tokens), failures) == ({1, 2}, {})
    tokens, failures = batch.wait_for_answer(second)
    assert (set(tokens), failures) == ({2}, {1: pb.NO_ROOM})
    assert list(shard_state.block_usage.is_full[:4]) == [True, False, False, False]


def test_many_reruns_suspend_the_overlap(overlapping_workers: SchedulerWithWorkers,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_overlap, "NUM_SUSPENDED_STEPS", 2)
    monkeypatch.setattr(step_overlap, "MAX_RERUN_SHARE", -1.0)
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InFlightReplay, "get_sampled_tokens", lambda _: None)
        batch.wait_for_answer(batch.send(make_decode(1)))
    assert [isinstance(batch.send(make_decode(1)), PendingResult) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("every", "least", "most"), [(2, 0.9, 1.0), (8, 0.7, 0.9), (50, 0, 0), (10**9, 0, 0)])
def test_few_reruns_do_not_suspend_the_overlap(
        monkeypatch: pytest.MonkeyPatch, every: int, least: float, most: float) -> None:
    """Of 1,000 steps that start ahead, one in `every` is rerun; checks the share of steps that wait instead."""
    monkeypatch.setattr(step_overlap, "NUM_SUSPENDED_STEPS", 32)
    backoff, num_started, num_waited = step_overlap.OverlapBackoff(), 0, 0
    while num_started < 1000:
        if backoff.consume_suspended_overlap():
            num_waited += 1
        else:
            num_started += 1
            backoff.record_step(succeeded=num_started % every > 0)
    assert least <= num_waited / (num_started + num_waited) <= most


def test_separate_filter_waits_for_the_step(overlapping_workers: SchedulerWithWorkers) -> None:
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    first = batch.send(make_decode(1))
    batch.send(make_filter(1, 1, 3))
    assert first.future.done()
    assert set(batch.wait_for_answer(batch.send(make_decode(1)))[0]) == {1, 3}


def test_rejected_message_does_not_affect_steps_in_flight(overlapping_workers: SchedulerWithWorkers) -> None:
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    expected = [batch.wait_for_answer(batch.send(make_decode(1)))[0] for _ in range(2)]
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    first = batch.send(make_decode(1))
    with pytest.raises(RejectedMessage, match="no sequence of batch 9 is ready"):
        batch.send(make_decode(9))
    assert batch.wait_for_answer(first)[0] == expected[0]
    assert batch.wait_for_answer(batch.send(make_decode(1)))[0] == expected[1]


def test_failure_is_raised_for_all_steps_in_flight(overlapping_workers: SchedulerWithWorkers,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    first, second = batch.send(make_decode(1)), batch.send(make_decode(1))
    monkeypatch.setattr(InFlightReplay, "get_sampled_tokens", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batch.send(make_decode(1))
    for answer in (first, second):
        with pytest.raises(ZeroDivisionError):
            batch.wait_for_answer(answer)
    monkeypatch.undo()
    batch = OverlappedBatch(overlapping_workers, *SEQUENCE_ROWS)
    assert set(batch.wait_for_answer(batch.send(make_decode(1)))[0]) == {1, 2, 3}


