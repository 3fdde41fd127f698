import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.shards.batch_run import Epoch, Run, Sampling, Shape, newcomers
from benchmarks.bench.shards.ranks import Heard, ShardFailed
from shard.pb import shard_pb2 as pb
from shard.state.sequence import PLAIN, Limits, read_sampling, read_sequences

ONE = Shape(sequence_length=10, decode_length=8, block_size=16)


class Notebook:
    """Fake ranks that record messages and answer each with one token for `rows` sequences."""

    def __init__(self, rows: int, **answer: Any) -> None:
        self.messages: list[Any] = []
        self._answer = pb.StepAnswer(sequences=range(rows), tokens=[7] * rows, forward_seconds=0.25, **answer)

    async def send(self, message: Any) -> Heard:
        self.messages.append(message)
        return Heard([self._answer], 0.5)


def run(notebook: Notebook, rows: int = 2) -> Run:
    return asyncio.run(Epoch(notebook, 5).run(newcomers(rows, ONE, 100, Sampling()), 3))


def test_a_run_is_a_prefill_the_decodes_and_a_filter_that_keeps_nobody() -> None:
    run(notebook := Notebook(2))
    kinds = [type(message) for message in notebook.messages]
    assert kinds == [pb.PrefillRequest, pb.DecodeRequest, pb.DecodeRequest, pb.FilterRequest]
    assert [(message.epoch, message.order) for message in notebook.messages] == [(5, order) for order in (1, 2, 3, 4)]
    assert notebook.messages[-1].HasField("keep")
    assert not notebook.messages[-1].keep.sequences


def test_a_prefill_runs_every_prompt_as_a_whole() -> None:
    run(notebook := Notebook(2))
    chunks = notebook.messages[0].chunks
    assert (list(chunks.sequences), list(chunks.starts), list(chunks.lengths)) == ([1, 2], [0, 0], [10, 10])


def test_of_a_step_its_time_the_shard_s_own_and_its_tokens_are_kept() -> None:
    found = run(Notebook(2))
    assert [(step.wall, step.forward, step.num_tokens) for step in (found.prefill, *found.decodes)] == [
        (0.5, 0.25, 2)] * 3


def test_a_sequence_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(ShardFailed, match="the shard gave tokens to 1 of 2 sequences: NON_FINITE"):
        run(Notebook(1, failed=[2], failures=[pb.NON_FINITE]))


def test_the_same_prompts_are_made_again() -> None:
    assert newcomers(3, ONE, 100, Sampling()) == newcomers(3, ONE, 100, Sampling())


@given(rows=st.integers(1, 8), length=st.integers(1, 70), decodes=st.integers(2, 40), speculated=st.integers(1, 4),
       vocabulary=st.integers(1, 300))
def test_every_sequence_comes_with_the_blocks_that_it_will_need(
        rows: int, length: int, decodes: int, speculated: int, vocabulary: int) -> None:
    shape = Shape(length, decodes, 16, speculated)
    message = newcomers(rows, shape, vocabulary, Sampling())
    sequences = read_sequences(message, Limits(vocabulary, 1000, speculated, True), 16, rows * shape.num_blocks)
    assert sorted(block for one in sequences for block in one.blocks) == [*range(rows * shape.num_blocks)]
    assert all(16 * len(one.blocks) >= length + (decodes - 1) * speculated for one in sequences)


def test_rows_of_which_nothing_is_said_have_no_columns() -> None:
    assert Sampling().columns(2) == pb.Sampling()
    assert Sampling(temperature=1.0).columns(2) == pb.Sampling()


def test_what_is_asked_for_stands_in_every_row() -> None:
    asked = Sampling(temperature=0.5, top_k=3, repetition_penalty=1.5, frequency_penalty=0.5, watermark=True,
                     top_n_tokens=2)
    one, other = read_sampling(asked.columns(2), 2)
    assert one == other
    assert (one.temperature, one.top_k, one.repetition_penalty, one.watermark, one.top_n_tokens) == (
        0.5, 3, 1.5, True, 2)
    assert (one.relative_frequency_penalty, one.frequency_penalty) == (0.5, 0.0)


@pytest.mark.parametrize("asked", [{"do_sample": True}, {"top_k": 5}, {"top_p": 0.5}, {"typical_p": 0.5}])
def test_what_makes_sense_only_with_draws_makes_the_shard_draw(asked: dict[str, Any]) -> None:
    [one] = read_sampling(Sampling(**asked).columns(1), 1)
    assert one.temperature == 1.0
    assert PLAIN.temperature == 0.0
