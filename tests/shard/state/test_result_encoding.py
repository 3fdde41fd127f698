"""Tests of shard/state/result_encoding.py: the router reads what a shard writes."""

from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from router.model_info import ModelInfo
from router.request import Request, RequestKind, TokenClassificationOutput
from router.scheduler.shard_messages import Decode, NewSequence, PoolingStep, StepPlan, StepResult
from router.shards.message_conversion import decode_answer
from shard.pb import shard_pb2 as pb
from shard.state.result_encoding import (
    PromptLogprobs,
    SequenceOutput,
    TokenClassification,
    write_embeddings,
    write_labels,
    write_prompt_logprobs,
    write_sequence_outputs,
)
from shard.state.sequence import DEFAULT_SAMPLING_PARAMS, Sequence
from shard.state.step import PrefillChunk, Step

MODEL_INFO = ModelInfo("m", "cpu", "float32", 100, 64, 16, 8, tokens_per_step=3, labels=("O", "B-PER", "I-PER"))
FLOATS = st.floats(-100.0, 0.0, width=32)
TOKENS = st.integers(0, 99)
TOP_LISTS = st.lists(st.tuples(TOKENS, FLOATS), max_size=3)


def make_sequence(number: int, failure: pb.Failure | None = None) -> Sequence:
    return Sequence(number, [5] * 20, 20, 20, 0, 0, [0, 1], 0, DEFAULT_SAMPLING_PARAMS, False, 0, 0,
                    failure=failure)


def make_chunk(number: int, length: int = 20, failure: pb.Failure | None = None) -> PrefillChunk:
    return PrefillChunk(make_sequence(number, failure), 0, length)


def make_step(*numbers: int) -> Step:
    """Return a step of decodes."""
    return Step(decodes=[make_sequence(number) for number in numbers])


def write_outputs(step: Step, outputs: Mapping[int, SequenceOutput]) -> pb.StepAnswer:
    answer = pb.StepAnswer()
    write_sequence_outputs(answer, step, outputs)
    return answer


def read_by_router(answer: pb.StepAnswer, step: Step) -> StepResult:
    members = [sequence.id for sequence in step.sequences + step.failed_sequences]
    expected = [sequence.id for sequence in step.sampled_sequences + step.failed_sequences]
    plan = StepPlan(0, 0, (Decode(1),), tuple(members), tuple(expected), 0.1)
    return decode_answer(answer, plan, MODEL_INFO)


def make_output(rows: list[tuple[int, float, list[tuple[int, float]]]], *, has_tops: bool) -> SequenceOutput:
    """Make the output of the rows' tokens, logprobs and best candidates."""
    tokens, logprobs = [token for token, _, _ in rows], [logprob for _, logprob, _ in rows]
    if not has_tops:
        return SequenceOutput(tokens, logprobs)
    return SequenceOutput(tokens, logprobs, [[token for token, _ in top] for _, _, top in rows],
                          [[logprob for _, logprob in top] for _, _, top in rows])


OUTPUTS = st.builds(make_output, st.lists(st.tuples(TOKENS, FLOATS, TOP_LISTS), min_size=1, max_size=3),
                    has_tops=st.booleans())


@given(st.lists(OUTPUTS, max_size=5), st.randoms())
@settings(max_examples=40)
def test_each_sequence_gets_its_tokens_in_the_order_of_the_step(outputs: list[SequenceOutput], random: Random) -> None:
    step, by_id = make_step(*range(11, 11 + len(outputs))), list(enumerate(outputs, 11))
    random.shuffle(by_id)
    answer = write_outputs(step, dict(by_id))
    rows = read_by_router(answer, step).rows
    assert list(answer.sequences) == list(rows) == list(range(11, 11 + len(outputs)))
    for row, output in zip(rows.values(), outputs, strict=True):
        assert (list(row.tokens), list(row.logprobs)) == (output.tokens, output.logprobs)
        tops = [list(zip(*pair, strict=True)) for pair in zip(output.top_tokens, output.top_logprobs, strict=True)]
        no_tops: list[list[tuple[int, float]]] = [[] for _ in output.tokens]
        assert (list(row.top_logprobs) or no_tops) == (tops or no_tops)


def test_one_token_each_needs_no_counts() -> None:
    answer = write_outputs(make_step(7, 8), {7: SequenceOutput([1], [-0.5]), 8: SequenceOutput([2], [-1.5])})
    assert answer == pb.StepAnswer(sequences=[7, 8], tokens=[1, 2], logprobs=[-0.5, -1.5])


def test_tokens_are_counted_if_any_sequence_has_several() -> None:
    answer = write_outputs(make_step(7, 8), {7: SequenceOutput([1], [-0.5]), 8: SequenceOutput([2, 3], [-1.5, -2.5])})
    assert (list(answer.num_tokens), list(answer.tokens)) == ([1, 2], [1, 2, 3])


def test_top_tokens_are_counted_for_every_token_if_any_has_some() -> None:
    answer = write_outputs(make_step(7, 8), {7: SequenceOutput([1, 2], [-0.5, -0.5]),
                                             8: SequenceOutput([3], [-0.5], [[3, 4]], [[-0.5, -1.5]])})
    assert (list(answer.num_top_tokens), list(answer.top_tokens), list(answer.top_logprobs)) == (
        [0, 0, 2], [3, 4], [-0.5, -1.5])


def test_completed_prompts_have_rows_behind_the_decodes_and_others_none() -> None:
    step = Step(decodes=[make_sequence(9)], chunks=[make_chunk(8), make_chunk(7, length=19), make_chunk(6)])
    answer = write_outputs(step, {number: SequenceOutput([number], [-0.5]) for number in (6, 8, 9)})
    assert (list(answer.sequences), list(answer.tokens), list(answer.failed)) == ([9, 8, 6], [9, 8, 6], [])


def test_failed_sequences_have_a_reason_and_no_row() -> None:
    """Those left out of the step, a decode, a completed prompt, and a prompt that is not complete yet."""
    step = Step(decodes=[make_sequence(1), make_sequence(2, pb.GRAMMAR)],
                chunks=[make_chunk(3, failure=pb.NON_FINITE), make_chunk(4, length=8, failure=pb.NON_FINITE)],
                failed_sequences=[make_sequence(5, pb.NO_ROOM)])
    answer = write_outputs(step, {1: SequenceOutput([6], [-0.5])})
    assert list(answer.sequences) == [1]
    assert dict(zip(answer.failed, answer.failures, strict=True)) == {
        2: pb.GRAMMAR, 3: pb.NON_FINITE, 4: pb.NON_FINITE, 5: pb.NO_ROOM}
    assert read_by_router(answer, step).failures.keys() == {2, 3, 4, 5}


def test_sequence_that_failed_in_a_later_step_keeps_its_token_of_this_one() -> None:
    """With overlapped steps the next one may have run before this one's answer is written."""
    step = Step(decodes=[make_sequence(7, pb.NON_FINITE)])
    answer = write_outputs(step, {7: SequenceOutput([1], [-0.5])})
    assert (list(answer.sequences), list(answer.failed)) == ([7], [])


def test_failure_without_a_reason_is_unspecified() -> None:
    answer = write_outputs(Step(failed_sequences=[make_sequence(7)]), {})
    assert (list(answer.failed), list(answer.failures)) == ([7], [pb.FAILURE_UNSPECIFIED])


# -- prompt logprobs


@st.composite
def prompt_logprobs(draw: st.DrawFn) -> PromptLogprobs:
    """Draw logprobs with equally many candidates each, or none."""
    logprobs, num_top_tokens = draw(st.lists(FLOATS, max_size=4)), draw(st.integers(0, 2))
    tops = [draw(st.lists(st.tuples(TOKENS, FLOATS), min_size=num_top_tokens, max_size=num_top_tokens))
            for _ in logprobs] if num_top_tokens else []
    return PromptLogprobs(draw(st.integers(1, 63)), logprobs, [[token for token, _ in top] for top in tops],
                          [[logprob for _, logprob in top] for top in tops])


@given(st.lists(prompt_logprobs(), max_size=4))
@settings(max_examples=60)
def test_prompts_with_logprobs_get_theirs_and_others_no_row(parts: list[PromptLogprobs]) -> None:
    answer, by_id = pb.StepAnswer(), dict(enumerate(parts, 11))
    write_prompt_logprobs(answer, by_id)
    step = Step(chunks=[make_chunk(number, length=8) for number in by_id])
    found = {row.sequence_id: PromptLogprobs(row.start, list(row.logprobs),
                                             [[token for token, _ in top] for top in row.top_logprobs],
                                             [[logprob for _, logprob in top] for top in row.top_logprobs])
             for row in read_by_router(answer, step).prompt_logprobs}
    assert found == {number: part for number, part in by_id.items() if part.logprobs}


# -- texts


def read_texts_by_router(answer: pb.EmbedAnswer, kind: RequestKind, lengths: list[int]) -> StepResult:
    sequences = tuple(NewSequence(number, Request("r", (5,) * length, 0, kind=kind), (), ())
                      for number, length in enumerate(lengths))
    members = tuple(range(len(lengths)))
    return decode_answer(answer, StepPlan(0, 0, (PoolingStep(kind, sequences),), members, members, 0.1), MODEL_INFO)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(
    st.none() | st.lists(FLOATS, min_size=width, max_size=width), max_size=5)))
@settings(max_examples=40)
def test_each_text_gets_its_vector_or_fails(vectors: list[list[float] | None]) -> None:
    answer = pb.EmbedAnswer()
    write_embeddings(answer, vectors)
    result = read_texts_by_router(answer, RequestKind.EMBED, [1] * len(vectors))
    assert result.pooling_outputs == {i: vector for i, vector in enumerate(vectors) if vector is not None}
    assert list(result.failures) == [i for i, vector in enumerate(vectors) if vector is None]


@given(st.lists(st.none() | st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 1.0, width=32)), min_size=1,
                                     max_size=3), max_size=5))
@settings(max_examples=40)
def test_each_token_gets_its_label_or_the_text_fails(texts: list[list[tuple[int, float]] | None]) -> None:
    answer = pb.EmbedAnswer()
    columns = [None if text is None else tuple(map(list, zip(*text, strict=True))) for text in texts]
    write_labels(answer, [None if text is None else TokenClassification(*text) for text in columns])
    result = read_texts_by_router(answer, RequestKind.CLASSIFY, [len(text or ()) for text in texts])
    assert result.pooling_outputs == {i: TokenClassificationOutput(*text) for i, text in enumerate(columns)
                                      if text is not None}
    assert list(result.failures) == [i for i, text in enumerate(texts) if text is None]


def test_failed_texts_are_named_by_index_and_reason() -> None:
    answer = pb.EmbedAnswer()
    write_embeddings(answer, [None, [0.5, 1.5, 2.5], None])
    assert answer == pb.EmbedAnswer(failed=[0, 2], failures=[pb.NON_FINITE] * 2, width=3, values=[0.5, 1.5, 2.5])


def test_answer_has_no_width_if_all_texts_failed() -> None:
    answer = pb.EmbedAnswer()
    write_embeddings(answer, [None])
    assert answer == pb.EmbedAnswer(failed=[0], failures=[pb.NON_FINITE])


def test_labels_are_counted_per_text() -> None:
    answer = pb.EmbedAnswer()
    write_labels(answer, [TokenClassification([2, 0], [0.5, 0.25]), None, TokenClassification([1], [1.0])])
    assert answer == pb.EmbedAnswer(num_labels=[2, 1], labels=[2, 0, 1], scores=[0.5, 0.25, 1.0], failed=[1],
                                    failures=[pb.NON_FINITE])
