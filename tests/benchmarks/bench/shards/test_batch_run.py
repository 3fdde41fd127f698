import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.shards.batch_run import (
    BatchRunner,
    BatchRunTimings,
    SamplingSettings,
    SequenceLengths,
    make_random_sequences,
)
from benchmarks.bench.shards.rank_connections import RankReplies, ShardFailed
from shard.pb import shard_pb2 as pb
from shard.state.sequence import DEFAULT_SAMPLING_PARAMS, ModelLimits, parse_sampling_params, parse_sequences

SMALL_SHAPE = SequenceLengths(sequence_length=10, decode_length=8, block_size=16)


class RecordingConnection:
    """Fake ranks that record messages and answer each with one token for `rows` sequences."""

    def __init__(self, rows: int, **answer: Any) -> None:
        self.messages: list[Any] = []
        self._answer = pb.StepAnswer(sequences=range(rows), tokens=[7] * rows, forward_seconds=0.25, **answer)

    async def send(self, message: Any) -> RankReplies:
        self.messages.append(message)
        return RankReplies([self._answer], 0.5)


def run_batch(connection: RecordingConnection, rows: int = 2) -> BatchRunTimings:
    return asyncio.run(
        BatchRunner(connection, 5).run_batch(make_random_sequences(rows, SMALL_SHAPE, 100, SamplingSettings()), 3))


def test_batch_is_a_prefill_decodes_and_an_empty_filter() -> None:
    run_batch(connection := RecordingConnection(2))
    kinds = [type(message) for message in connection.messages]
    assert kinds == [pb.PrefillRequest, pb.DecodeRequest, pb.DecodeRequest, pb.FilterRequest]
    assert [(message.epoch, message.order) for message in connection.messages] == [(5, order) for order in (1, 2, 3, 4)]
    assert connection.messages[-1].HasField("keep")
    assert not connection.messages[-1].keep.sequences


def test_prefill_runs_every_prompt_whole() -> None:
    run_batch(connection := RecordingConnection(2))
    chunks = connection.messages[0].chunks
    assert (list(chunks.sequences), list(chunks.starts), list(chunks.lengths)) == ([1, 2], [0, 0], [10, 10])


def test_step_timing_has_wall_and_forward_seconds_and_tokens() -> None:
    timings = run_batch(RecordingConnection(2))
    assert [(step.wall_seconds, step.forward_seconds, step.num_tokens)
            for step in (timings.prefill_timing, *timings.decode_timings)] == [(0.5, 0.25, 2)] * 3


def test_failed_sequence_ends_the_benchmark() -> None:
    with pytest.raises(ShardFailed, match="the shard gave tokens to 1 of 2 sequences: NON_FINITE"):
        run_batch(RecordingConnection(1, failed=[2], failures=[pb.NON_FINITE]))


def test_prompts_are_repeatable() -> None:
    assert make_random_sequences(3, SMALL_SHAPE, 100,
                                 SamplingSettings()) == make_random_sequences(3, SMALL_SHAPE, 100, SamplingSettings())


@given(rows=st.integers(1, 8), length=st.integers(1, 70), decodes=st.integers(2, 40), speculated=st.integers(1, 4),
       vocabulary=st.integers(1, 300))
def test_every_sequence_gets_all_the_blocks_it_needs(
        rows: int, length: int, decodes: int, speculated: int, vocabulary: int) -> None:
    shape = SequenceLengths(length, decodes, 16, speculated)
    message = make_random_sequences(rows, shape, vocabulary, SamplingSettings())
    sequences = parse_sequences(message, ModelLimits(vocabulary, 1000, speculated, True), 16, rows * shape.num_blocks)
    assert sorted(block for one in sequences for block in one.blocks) == [*range(rows * shape.num_blocks)]
    assert all(16 * len(one.blocks) >= length + (decodes - 1) * speculated for one in sequences)


def test_default_sampling_has_no_columns() -> None:
    assert SamplingSettings().to_columns(2) == pb.Sampling()
    assert SamplingSettings(temperature=1.0).to_columns(2) == pb.Sampling()


def test_sampling_settings_are_in_every_row() -> None:
    settings = SamplingSettings(temperature=0.5, top_k=3, repetition_penalty=1.5, frequency_penalty=0.5, watermark=True,
                                top_n_tokens=2)
    one, other = parse_sampling_params(settings.to_columns(2), 2)
    assert one == other
    assert (one.temperature, one.top_k, one.repetition_penalty, one.watermark, one.top_n_tokens) == (
        0.5, 3, 1.5, True, 2)
    assert (one.relative_frequency_penalty, one.frequency_penalty) == (0.5, 0.0)


@pytest.mark.parametrize("settings", [{"do_sample": True}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.5}])
def test_sampling_filters_imply_random_sampling(settings: dict[str, Any]) -> None:
    [one] = parse_sampling_params(SamplingSettings(**settings).to_columns(1), 1)
    assert one.temperature == 1.0
    assert DEFAULT_SAMPLING_PARAMS.temperature == 0.0
