"""Contents of a step: which sequences yield a token, and which are left out."""

from support.model_runs.decoder_reference import make_sequence

from shard.pb import shard_pb2 as pb
from shard.state.step import PrefillChunk, Step, TokenSpan, lay_out_step


def test_decodes_and_last_chunks_are_sampled() -> None:
    decoding, ending, beginning = (make_sequence(sequence_id, 9, []) for sequence_id in range(3))
    step = Step([decoding], [PrefillChunk(ending, 4, 5), PrefillChunk(beginning, 0, 4)])
    assert step.sequences == [decoding, ending, beginning]
    assert step.sampled_sequences == [decoding, ending]


def test_sequences_that_failed_meanwhile_do_not_decode() -> None:
    first, failed, last = (make_sequence(sequence_id, 9, []) for sequence_id in range(3))
    step = Step([first, failed, last])
    failed.failure = pb.NON_FINITE
    step.separate_failed_sequences()
    assert (step.decodes, step.failed_sequences) == ([first, last], [failed])


def test_span_ends_after_its_last_token() -> None:
    assert TokenSpan(first_row=3, start=10, length=4, blocks=[0]).end == 14


def test_layout_has_decodes_before_chunks_and_the_rows_that_are_sampled() -> None:
    decoding, ending, beginning = (make_sequence(sequence_id, 9, [sequence_id]) for sequence_id in range(3))
    layout = lay_out_step(Step([decoding], [PrefillChunk(beginning, 0, 4), PrefillChunk(ending, 4, 5)]))
    assert layout.sequences == [decoding, beginning, ending]
    assert layout.spans == [TokenSpan(0, 8, 1, [0]), TokenSpan(1, 0, 4, [2]), TokenSpan(5, 4, 5, [1])]
    assert (layout.num_decodes, layout.num_dummy_rows) == (1, 0)
    assert (layout.sampled_sequences, layout.sampled_rows) == ([decoding, ending], [0, 9])


def test_step_of_a_single_token_has_a_dummy_row() -> None:
    sequence = make_sequence(0, 9, [])
    assert [lay_out_step(step).num_dummy_rows for step in (Step([sequence]), Step([], [PrefillChunk(sequence, 8, 1)]),
                                                           Step([sequence, sequence]))] == [1, 1, 0]
