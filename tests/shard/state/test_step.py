"""Contents of a step: which sequences yield a token, and which are left out."""

from support.model_runs.decoder_reference import make_sequence

from shard.pb import shard_pb2 as pb
from shard.state.step import PrefillChunk, Step


def test_decodes_and_last_chunks_are_sampled() -> None:
    decoding, ending, beginning = (make_sequence(sequence_id, 9, []) for sequence_id in range(3))
    step = Step([decoding], [PrefillChunk(ending, 4, 5), PrefillChunk(beginning, 0, 4)])
    assert step.sequences == [decoding, ending, beginning]
    assert step.sampled_sequences == [decoding, ending]


def test_sequences_that_failed_meanwhile_do_not_decode() -> None:
    first, failed, last = (make_sequence(sequence_id, 9, []) for sequence_id in range(3))
    step = Step([first, failed, last])
    failed.failure = pb.NON_FINITE
    step.drop_failed()
    assert (step.decodes, step.failed_sequences) == ([first, last], [failed])
