"""Tests of router/scheduler/step.py."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.recordings import SMALL_MODEL_INFO

from router.request import FinishReason, Request, RequestKind
from router.scheduler.cost_model import StepLoad
from router.scheduler.running_sequences import Batch, RunningSequences
from router.scheduler.sequence import Sequence
from router.scheduler.settings import SchedulerSettings
from router.scheduler.step import ChunkWrite, StepDraft, UnansweredPlan, find_finish_point

END_TOKEN = 9
TEXT_TOKENS = st.integers(0, END_TOKEN)


def make_sequence(number: int, prompt: int, num_computed: int = 0) -> Sequence:
    """Return a sequence of which a part of the prompt is computed."""
    return Sequence(Request(str(number), (1,) * prompt, 16), number, 0.0, num_tokens_to_prefill=prompt,
                    num_scheduled_tokens=num_computed)


def make_decoding(number: int, length: int = 20, num_steps_in_flight: int = 0) -> Sequence:
    """Return a sequence with one generated token, and with more in flight."""
    sequence = make_sequence(number, length - 1, length - 1 + num_steps_in_flight)
    sequence.generated += [7]
    sequence.length += 1
    sequence.num_outputs_in_flight = num_steps_in_flight
    return sequence


def start_step(*decoding: Sequence, chunks: list[tuple[Sequence, int]] | None = None, **fields: Any) -> UnansweredPlan:
    draft = StepDraft(batch=Batch(1), decoding=list(decoding), chunks=chunks or [], **fields)
    return draft.advance_sequences(5)


def test_draft_without_a_step_has_a_number_and_no_load() -> None:
    assert StepDraft(batch=Batch(1), has_turned_new_sequence_away=True).advance_sequences(5) == UnansweredPlan(5)
    assert UnansweredPlan(5).load is None


def test_token_of_a_decode_counts_as_sent_and_in_flight() -> None:
    one = make_decoding(1, num_steps_in_flight=1)
    step = start_step(one)
    assert (one.num_scheduled_tokens, one.num_outputs_in_flight, one.length) == (21, 2, 20)
    assert step.members == step.members_with_output == (one,)
    assert step.chunk_writes == ()


def test_chunk_in_the_middle_of_a_prompt_yields_no_token() -> None:
    one = make_sequence(1, prompt=40)
    step = start_step(chunks=[(one, 39)])
    assert (one.num_scheduled_tokens, one.num_outputs_in_flight) == (39, 0)
    assert (step.members, step.members_with_output) == ((one,), ())


def test_last_chunk_of_a_prompt_yields_a_token() -> None:
    one = make_sequence(1, prompt=40, num_computed=32)
    step = start_step(chunks=[(one, 8)])
    assert (one.num_scheduled_tokens, one.num_outputs_in_flight) == (40, 1)
    assert step.members_with_output == (one,)


def test_prompt_that_returns_is_complete_with_its_generated_tokens() -> None:
    one = make_sequence(1, prompt=20)
    one.generated += [7, 8]
    one.length += 2
    one.num_tokens_to_prefill = one.length
    assert start_step(chunks=[(one, 20)]).members_with_output == ()
    assert start_step(chunks=[(one, 2)]).members_with_output == (one,)


def test_decodes_come_before_prompts() -> None:
    """The order of `StepDraft`'s messages, and of the rows that shards answer."""
    first, part, last, second = (make_decoding(4), make_sequence(3, prompt=64), make_sequence(2, prompt=16),
                                 make_decoding(1))
    step = start_step(first, second, chunks=[(part, 32), (last, 16)])
    assert tuple(sequence.id for sequence in step.members) == (4, 1, 3, 2)
    assert tuple(sequence.id for sequence in step.members_with_output) == (4, 1, 2)


def test_load_is_that_of_the_sequences_before_they_advance() -> None:
    step = start_step(make_decoding(1, length=20, num_steps_in_flight=1),
                      chunks=[(make_sequence(2, prompt=100, num_computed=32), 48)])
    assert step.load == StepLoad(rows=2, chunk_tokens=48, context=20 + 1 + 32 + 48)


def test_kind_of_the_draft_and_turned_away_sequence_are_kept() -> None:
    text = make_sequence(1, prompt=16)
    step = start_step(chunks=[(text, 16)], kind=RequestKind.EMBED, has_turned_new_sequence_away=True)
    assert (step.kind, step.last_message_number) == (RequestKind.EMBED, 5)
    assert step.has_turned_new_sequence_away
    assert not start_step(make_decoding(1)).has_turned_new_sequence_away


@given(st.lists(st.tuples(st.integers(2, 40), st.integers(0, 2)), max_size=4),
       st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 20)), max_size=4))
def test_sequences_advance_by_what_the_step_computes(decodes: list[tuple[int, int]],
                                                     prompts: list[tuple[int, int, int]]) -> None:
    decoding = [make_decoding(number, *fields) for number, fields in enumerate(decodes)]
    chunks = [(make_sequence(number, computed + length + left, computed), length)
              for number, (length, computed, left) in enumerate(prompts, len(decoding))]
    everyone = [*decoding, *(sequence for sequence, _ in chunks)]
    before = [(sequence.num_scheduled_tokens, sequence.num_outputs_in_flight) for sequence in everyone]
    step = start_step(*decoding, chunks=chunks)
    advances = [sequence.num_scheduled_tokens - computed
                for sequence, (computed, _) in zip(everyone, before, strict=True)]
    yielding = [sequence for sequence, (_, num_steps) in zip(everyone, before, strict=True)
                if sequence.num_outputs_in_flight == num_steps + 1]
    assert advances == [1] * len(decoding) + [length for _, length in chunks]
    assert list(step.members_with_output) == yielding == [s for s in step.members if s.is_ready_to_decode]
    assert step.load is None or (step.load.rows, step.load.chunk_tokens) == (
        len(step.members), sum(advances) - len(decoding))


# -- cache content of chunks


def enter_batch(running: RunningSequences, sequence: Sequence) -> list[int]:
    running.enter_batch(sequence, running.batches[0] if running.batches else running.make_empty_batch())
    return sequence.blocks


@pytest.fixture
def running() -> RunningSequences:
    return RunningSequences(SchedulerSettings(), replace(SMALL_MODEL_INFO, num_blocks=4))


def test_chunk_write_keeps_the_end_of_its_chunk(running: RunningSequences) -> None:
    one = make_sequence(1, prompt=40)
    blocks = enter_batch(running, one)
    first, second = start_step(chunks=[(one, 16)]), start_step(chunks=[(one, 24)])
    assert (first.chunk_writes, second.chunk_writes) == ((ChunkWrite(one, blocks, 16),), (ChunkWrite(one, blocks, 40),))


def test_chunk_write_is_valid_while_the_sequence_grows(running: RunningSequences) -> None:
    one = make_sequence(1, prompt=16)
    enter_batch(running, one)
    (write,) = start_step(chunks=[(one, 16)]).chunk_writes
    (grant,), _ = running.allocate_for_decodes([one])
    assert write.is_valid
    assert write.blocks[1:] == list(grant.blocks)


def test_chunk_write_is_void_once_the_sequence_left_even_if_it_got_the_same_blocks_again(
        running: RunningSequences) -> None:
    one = make_sequence(1, prompt=60)
    enter_batch(running, one)
    step = start_step(chunks=[(one, 60)])
    numbers = set(one.blocks)
    running.preempt(one)
    assert not step.chunk_writes[0].is_valid
    assert set(enter_batch(running, one)) == numbers
    assert not step.chunk_writes[0].is_valid


# -- find_finish_point


def make_request(output: int) -> Request:
    return Request("r", (1,), output, end_tokens=frozenset({END_TOKEN}))


@given(st.data(), st.lists(TEXT_TOKENS, min_size=1, max_size=6), st.integers(0, 3))
def test_row_ends_where_rows_of_one_token_would(data: st.DataObject, tokens: list[int], num_generated: int) -> None:
    request = make_request(data.draw(st.integers(num_generated + 1, num_generated + 7)))
    stop = data.draw(st.none() | st.integers(1, len(tokens)))
    expected: tuple[int, FinishReason | None] = len(tokens), None
    for index, token in enumerate(tokens):
        _, reason = find_finish_point(request, num_generated + index, (token,), 1 if index + 1 == stop else None)
        if reason is not None:
            expected = index + 1, reason
            break
    assert find_finish_point(request, num_generated, tokens, stop) == expected


@pytest.mark.parametrize(("num_generated", "token", "stop", "reason"), [
    (1, 5, None, None), (1, END_TOKEN, None, FinishReason.END_TOKEN), (1, 5, 1, FinishReason.STOP_STRING),
    (1, END_TOKEN, 1, FinishReason.END_TOKEN), (2, 5, None, FinishReason.LENGTH), (2, 5, 1, FinishReason.LENGTH),
    (2, END_TOKEN, 1, FinishReason.LENGTH)])
def test_length_goes_before_the_end_token_and_that_before_a_stop_string(
        num_generated: int, token: int, stop: int | None, reason: FinishReason | None) -> None:
    assert find_finish_point(make_request(3), num_generated, (token,), stop) == (1, reason)


def test_tokens_behind_a_stop_string_give_no_reason() -> None:
    assert find_finish_point(make_request(3), 0, (5, END_TOKEN, 6), 1) == (1, FinishReason.STOP_STRING)


def test_end_tokens_are_ignored_by_a_request_without_any() -> None:
    assert find_finish_point(Request("r", (1,), 3), 0, (END_TOKEN, END_TOKEN), None) == (2, None)
