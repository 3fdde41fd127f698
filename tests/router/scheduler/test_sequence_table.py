"""Tests of router/scheduler/sequence_table.py."""

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.method_overrides import override_methods
from support.scheduling.recordings import SMALL_MODEL_INFO
from support.scheduling.simulated_world import add_block_hashes

from router.request import FinishReason, LoadableResource, Request, Tenant
from router.scheduler.admission_control import WaitPredictor
from router.scheduler.cost_model import CostModel
from router.scheduler.events import SchedulerEvent, SequenceFailed, SequenceFinished, TokensGenerated
from router.scheduler.fault_isolation import FaultIsolation
from router.scheduler.loadable_resource_cache import LoadableResourceCache
from router.scheduler.running_sequences import RunningSequences
from router.scheduler.sequence import RequestPhase, Sequence, SequenceState
from router.scheduler.sequence_table import DeadlineHeap, SequenceTable
from router.scheduler.settings import SchedulerSettings
from router.scheduler.shard_messages import StepResult, StepResultRow
from router.scheduler.step import StepDraft, UnansweredPlan
from router.scheduler.waiting_queue import FairShares, WaitingQueue

END_TOKEN = 9
TEXT_TOKENS = st.integers(0, END_TOKEN)
NO_EVENT: list[SchedulerEvent] = []


class ResultHarness:
    """Sequences of one batch, whose steps are sent and answered by hand."""

    def __init__(self) -> None:
        settings, available = SchedulerSettings(), set[LoadableResource]()
        self.queue, self.fault_isolation, self.fair_shares = WaitingQueue(available), FaultIsolation(), FairShares()
        self.running = RunningSequences(settings, replace(SMALL_MODEL_INFO, num_blocks=20))
        self.sequences = SequenceTable(
            self.queue, self.running, self.fault_isolation, self.fair_shares,
            WaitPredictor(settings, 320, CostModel.from_measurements([])),
            LoadableResourceCache(settings, self.queue, self.fair_shares, available))

    def start(self, prompt: int = 16, output: int = 8, **fields: Any) -> Sequence:
        request = Request("r", tuple(range(prompt)), output, end_tokens=frozenset({END_TOKEN}), **fields)
        sequence = self.sequences.create_sequence(add_block_hashes(request, 16), 0.0)
        sequence.timeline.enter_phase(RequestPhase.PREFILL, 0.0)
        self.enter_batch(sequence)
        return sequence

    def enter_batch(self, sequence: Sequence) -> None:
        self.running.enter_batch(sequence, self.running.batches[0] if self.running.batches
                                 else self.running.make_empty_batch())

    def num_published_blocks(self, sequence: Sequence) -> int:
        return len(self.running.block_pool.find_cached_prefix(sequence.request.block_hashes))

    def answer(self, step: UnansweredPlan, *, now: float = 1.0, failed: tuple[Sequence, ...] = (),
               stops: dict[int, int] | None = None, **tokens: tuple[int, ...]) -> list[SchedulerEvent]:
        """Answer with one token for each sequence, or with the value of s<number>."""
        rows = {s.id: tokens.get(f"s{s.id}", (7,)) for s in step.members_with_output if s not in failed}
        result = StepResult(1, 0.01, {n: StepResultRow(row, [0.0] * len(row)) for n, row in rows.items()},
                            {s.id: "not a number" for s in failed})
        return self.sequences.apply_result(step, result, stops or {}, now)


@pytest.fixture
def harness() -> ResultHarness:
    return ResultHarness()


def send_draft(draft: StepDraft) -> UnansweredPlan:
    return draft.advance_sequences(1)


def send_chunks(*sequences: Sequence, length: int | None = None) -> UnansweredPlan:
    """Send the first `length` tokens of the rest of each prompt, by default all."""
    chunks = [(s, length or s.num_tokens_to_prefill - s.num_scheduled_tokens) for s in sequences]
    return send_draft(StepDraft(chunks=chunks))


def send_decodes(*sequences: Sequence) -> UnansweredPlan:
    return send_draft(StepDraft(decoding=list(sequences)))


# -- accepted tokens


def test_tokens_are_appended_to_their_sequences(harness: ResultHarness) -> None:
    first, second = harness.start(), harness.start()
    assert harness.answer(send_chunks(first, second), s1=(5,), s2=(6,)) == [TokensGenerated({1: 1, 2: 1})]
    harness.answer(send_decodes(second), s2=(7,))
    assert (first.generated, second.generated, second.length) == ([5], [6, 7], 18)
    assert (first.num_outputs_in_flight, second.num_outputs_in_flight) == (0, 0)


def test_tokens_behind_the_end_are_not_appended(harness: ResultHarness) -> None:
    one = harness.start()
    assert harness.answer(send_chunks(one), s1=(5, END_TOKEN, 6))[0] == TokensGenerated({1: 2})
    assert (one.generated, one.length) == ([5, END_TOKEN], 18)


def test_stop_string_ends_only_its_own_sequence(harness: ResultHarness) -> None:
    step = send_chunks(harness.start(), harness.start())
    assert harness.answer(step, stops={2: 1}, s1=(5, 6), s2=(5, 6)) == [
        TokensGenerated({1: 2, 2: 1}), SequenceFinished(2, FinishReason.STOP_STRING)]


def test_step_that_expects_no_token_has_no_event(harness: ResultHarness) -> None:
    assert harness.answer(send_chunks(harness.start(prompt=40), length=16)) == NO_EVENT
    assert harness.answer(UnansweredPlan(2)) == NO_EVENT


def test_ends_follow_the_tokens_and_failures_the_ends(harness: ResultHarness) -> None:
    first, second, third = (harness.start() for _ in range(3))
    events = harness.answer(send_chunks(first, second, third), failed=(first,), s2=(END_TOKEN,), s3=(5,))
    assert events == [TokensGenerated({2: 1, 3: 1}), SequenceFinished(2, FinishReason.END_TOKEN),
                      SequenceFailed(1, "not a number")]


def test_ended_sequence_holds_no_blocks(harness: ResultHarness) -> None:
    ends, fails = harness.start(prompt=33, output=1), harness.start(prompt=20)
    harness.answer(send_chunks(ends, fails), failed=(fails,))
    assert harness.running.block_pool.num_free == harness.running.block_pool.num_blocks
    assert (len(harness.sequences), len(harness.running)) == (0, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_answer_after_the_end_changes_nothing(harness: ResultHarness, fails: bool) -> None:
    gone, stays = harness.start(), harness.start()
    step = send_chunks(gone, stays)
    harness.sequences.end_sequence(gone, 0.5)
    assert harness.answer(step, failed=(gone,) if fails else (), s1=(END_TOKEN,)) == [TokensGenerated({2: 1})]
    assert gone.generated == []


@given(st.lists(TEXT_TOKENS, min_size=12, max_size=12), st.integers(1, 12),
       st.lists(st.integers(1, 4), min_size=12, max_size=12))
def test_text_does_not_depend_on_how_its_tokens_are_split_into_rows(text: list[int], output: int,
                                                                    row_lengths: list[int]) -> None:
    harness = ResultHarness()
    one, rows = harness.start(output=output), [text[i:j] for i, j in pairwise([0, *accumulate(row_lengths)])]
    events = list(harness.answer(send_chunks(one), s1=tuple(rows.pop(0))))
    while one.state is not SequenceState.FINISHED:
        events += harness.answer(send_decodes(one), s1=tuple(rows.pop(0)))
    ends = text[:output].index(END_TOKEN) + 1 if END_TOKEN in text[:output] else output
    assert one.generated == text[:ends]
    assert sum(event.token_counts[1] for event in events if isinstance(event, TokensGenerated)) == ends
    assert events[-1] == SequenceFinished(1, FinishReason.LENGTH if ends == output else FinishReason.END_TOKEN)


# -- time limits


def test_first_token_from_the_deadline_on_is_the_last(harness: ResultHarness) -> None:
    one = harness.start(timeout=5.0)
    assert harness.answer(send_chunks(one), now=4.9) == [TokensGenerated({1: 1})]
    assert harness.answer(send_decodes(one), now=5.0) == [TokensGenerated({1: 1}),
                                                          SequenceFinished(1, FinishReason.TIMEOUT)]


@pytest.mark.parametrize(("token", "stops", "output", "reason"), [
    (END_TOKEN, {}, 8, FinishReason.END_TOKEN), (5, {1: 1}, 8, FinishReason.STOP_STRING),
    (5, {}, 1, FinishReason.LENGTH)])
def test_text_that_is_complete_has_not_timed_out(harness: ResultHarness, token: int, stops: dict[int, int],
                                                 output: int, reason: FinishReason) -> None:
    step = send_chunks(harness.start(output=output, timeout=5.0))
    assert harness.answer(step, now=6.0, stops=stops, s1=(token,))[1:] == [SequenceFinished(1, reason)]


# -- prompts


def test_blocks_filled_by_a_chunk_are_published(harness: ResultHarness) -> None:
    one = harness.start(prompt=50)
    first, last = send_chunks(one, length=20), send_chunks(one)
    harness.answer(first)
    assert harness.num_published_blocks(one) == 1
    harness.answer(last)
    assert harness.num_published_blocks(one) == 3


def test_blocks_of_a_failed_chunk_are_not_published(harness: ResultHarness) -> None:
    part, whole = harness.start(prompt=40), harness.start(prompt=16)
    assert harness.answer(send_chunks(part, length=32), failed=(part,)) == [SequenceFailed(1, "not a number")]
    harness.answer(send_chunks(whole), failed=(whole,))
    assert harness.num_published_blocks(part) == 0


def test_blocks_of_a_sequence_that_left_and_returned_are_not_published(harness: ResultHarness) -> None:
    """Its new blocks are not computed yet."""
    one = harness.start(prompt=40)
    step = send_chunks(one, length=32)
    harness.running.preempt(one)
    harness.enter_batch(one)
    harness.answer(step)
    assert harness.num_published_blocks(one) == 0


def test_decode_phase_begins_when_the_last_chunk_is_answered(harness: ResultHarness) -> None:
    one = harness.start(prompt=40)
    first, last = send_chunks(one, length=39), send_chunks(one)
    harness.answer(first, now=1.0)
    assert one.timeline.phase is RequestPhase.PREFILL
    harness.answer(last, now=2.0)
    assert one.timeline.intervals(3.0)[-2:] == [(RequestPhase.PREFILL, 0.0, 2.0), (RequestPhase.DECODE, 2.0, 3.0)]


# -- preempted sequences


def test_preempted_sequence_waits_again_when_its_last_token_in_flight_is_answered(harness: ResultHarness) -> None:
    one = harness.start()
    steps = [send_chunks(one), send_decodes(one)]
    harness.running.preempt(one)
    harness.answer(steps[0])
    assert (one.state, len(harness.queue)) == (SequenceState.PREEMPTED, 0)
    harness.answer(steps[1])
    assert (one.state, list(harness.queue), one.generated) == (SequenceState.WAITING, [one], [7, 7])


@pytest.mark.parametrize("fails", [False, True])
def test_preempted_sequence_that_ends_does_not_wait_again(harness: ResultHarness, fails: bool) -> None:
    one = harness.start(output=1)
    step = send_chunks(one)
    harness.running.preempt(one)
    harness.answer(step, failed=(one,) if fails else ())
    assert (one.state, len(harness.queue), len(harness.sequences)) == (SequenceState.FINISHED, 0, 0)


# -- tenants and suspects


@pytest.mark.parametrize(("others", "charged"), [((), []), (("other",), [("mine", 4.0)])])
def test_tenant_pays_for_accepted_tokens_while_others_have_requests(
        harness: ResultHarness, others: tuple[str, ...], charged: list[tuple[str, float]]) -> None:
    one, paid = harness.start(tenant=Tenant("mine")), list[tuple[str, float]]()
    for name in others:
        harness.start(tenant=Tenant(name))
    override_methods(harness.fair_shares, charge_tenant=lambda tenant, cost: paid.append((tenant.name, cost)))
    harness.answer(send_chunks(one), s1=(5, END_TOKEN, 6))
    assert paid == charged


def test_only_an_accepted_token_clears_a_suspect(harness: ResultHarness) -> None:
    first, second = harness.start(prompt=40), harness.start()
    harness.fault_isolation.isolate_suspects([[first, second]])
    harness.answer(send_chunks(first, second, length=16))
    assert harness.fault_isolation.suspects_allowed_to_start(lambda _: False) == {1: first}
    harness.answer(send_chunks(first))
    assert not harness.fault_isolation.suspect_sets


def test_only_an_accepted_token_clears_a_sequence_of_the_shards_deaths(harness: ResultHarness) -> None:
    one = harness.start(prompt=40)
    one.num_shard_deaths = 2
    harness.answer(send_chunks(one, length=39))
    assert one.num_shard_deaths == 2
    harness.answer(send_chunks(one))
    assert one.num_shard_deaths == 0


# -- deadlines


def make_timed_sequence(number: int, timeout: float | None) -> Sequence:
    return Sequence(Request(str(number), (1,), 1, timeout=timeout), number, 10.0)


def test_earliest_deadline_comes_first_and_each_once() -> None:
    deadlines = DeadlineHeap()
    for sequence in (make_timed_sequence(1, 5.0), make_timed_sequence(2, None), make_timed_sequence(3, 2.0)):
        deadlines.add(sequence)
    assert deadlines.earliest_deadline() == 12.0
    assert [sequence.id for sequence in deadlines.pop_expired(20.0)] == [3, 1]
    assert deadlines.pop_expired(30.0) == []
    assert deadlines.earliest_deadline() is None


def test_requeued_sequence_expires_again_and_duplicates_expire_once() -> None:
    deadlines, first, second = DeadlineHeap(), make_timed_sequence(1, 2.0), make_timed_sequence(2, 5.0)
    deadlines.add(first)
    deadlines.add(second)
    assert deadlines.pop_expired(13.0) == [first]
    for sequence in (first, second):
        deadlines.add(sequence)
    assert deadlines.pop_expired(20.0) == [first, second]
    assert deadlines.earliest_deadline() is None


def test_finished_sequence_has_no_deadline() -> None:
    deadlines, sequence = DeadlineHeap(), make_timed_sequence(1, 5.0)
    deadlines.add(sequence)
    sequence.state = SequenceState.FINISHED
    deadlines.discard_finished()
    assert deadlines.earliest_deadline() is None
    assert deadlines.pop_expired(20.0) == []


def test_reading_the_earliest_deadline_has_no_side_effects() -> None:
    """`earliest_deadline` is not recorded: with a side effect, the core of a replay would differ."""
    deadlines, first, second = DeadlineHeap(), make_timed_sequence(1, 2.0), make_timed_sequence(2, 5.0)
    for sequence in (first, second):
        deadlines.add(sequence)
    before = list(deadlines._heap)
    first.state = SequenceState.FINISHED
    deadlines.earliest_deadline()
    assert deadlines._heap == before
