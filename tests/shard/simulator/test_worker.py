"""The simulated worker: text depends on the request alone, mix-ups raise errors, and faults occur as scripted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shards.protocol_messages import (
    SequenceRow,
    get_embeddings,
    get_labels_by_text,
    get_tokens_by_sequence,
    make_concat,
    make_decode,
    make_embed,
    make_filter,
    make_prefill,
)

from shard.config import ShardConfig, SimulatedConfig
from shard.errors import RejectedMessage, StepOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.simulator.simulated_outputs import (
    END_TOKEN,
    UNKNOWN_SEQUENCE_ID,
    KVCacheMismatch,
    SimulatedTokens,
    make_embedding,
    make_labels,
)
from shard.simulator.worker import MAX_SLEEP_SECONDS, SimulatedStepError, SimulatedWorker
from shard.state.sequence import PoolingText

PROMPT_TOKENS = list(b"weave me something nice")
SHORT_PROMPT_TOKENS = list(b"abc")
WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=512, max_batch_size=64, max_total_tokens=256)


class ProcessExit(Exception):
    pass


def raise_process_exit() -> None:
    raise ProcessExit


def make_worker(rank: int = 0, sleep_seconds: list[float] | None = None, **simulated_settings: Any) -> SimulatedWorker:
    config = ShardConfig(rank=rank, world_size=rank + 1, simulated=SimulatedConfig(**simulated_settings))
    worker = SimulatedWorker(config, sleep=([] if sleep_seconds is None else sleep_seconds).append,
                             exit=raise_process_exit)
    worker.warmup(WARMUP_REQUEST)
    worker.reset(pb.ResetRequest(epoch=1))
    return worker


def make_expected_text(row: SequenceRow, seed: int = 0, mean_output_length: float = 0.0) -> SimulatedTokens:
    """Return the text that this new sequence should get."""
    worker = make_worker(seed=seed, mean_output_length=mean_output_length)
    worker.prefill(make_prefill(1, row))
    text: SimulatedTokens = worker.shard_state.sequences[row.id].worker_state.text
    return text


class RandomBatchWalk:
    """Sequences on a random path through batches; `tokens_by_sequence` holds the tokens of each."""

    def __init__(self, draw: Any, tokens_per_step: int) -> None:
        self.worker = make_worker(tokens_per_step=tokens_per_step, mean_output_length=30.0)
        self.draw = draw
        self.prompts = {i: draw(st.lists(st.integers(0, 255), min_size=1, max_size=40)) for i in range(4)}
        self.tokens_by_sequence: dict[int, list[int]] = {i: [] for i in self.prompts}

    def add_answer(self, answer: pb.StepAnswer) -> None:
        for i, tokens in get_tokens_by_sequence(answer).items():
            self.tokens_by_sequence[i] += tokens

    def take_random_action(self) -> None:
        live_sequences = self.worker.shard_state.sequences
        waiting, unfinished = (sorted(self.prompts.keys() - live_sequences.keys()),
                               [i for i in live_sequences if not live_sequences[i].is_prefilled])
        if waiting and self.draw(st.booleans()):
            self.prefill_sequence(self.draw(st.sampled_from(waiting)))
        elif unfinished and self.draw(st.booleans()):
            sequence = live_sequences[self.draw(st.sampled_from(unfinished))]
            length = self.draw(st.integers(1, sequence.num_tokens_to_prefill - sequence.num_computed_tokens))
            chunk_rows = [(sequence.id, sequence.num_computed_tokens, length)]
            self.add_answer(self.worker.prefill(make_prefill(self.find_batch(sequence.id), chunk_rows=chunk_rows,
                                                             alongside=self.draw(st.booleans()))))
        elif live_sequences:
            self.draw(st.sampled_from([self.decode_batches, self.decode_batches, self.remove_random_sequence,
                                       self.join_all_batches]))()

    def prefill_sequence(self, sequence_id: int) -> None:
        tokens = self.prompts[sequence_id] + self.tokens_by_sequence[sequence_id]
        row = SequenceRow(sequence_id, tokens, range(16 * sequence_id, 16 * sequence_id + 16),
                          num_prompt_tokens=len(self.prompts[sequence_id]), sampling_key=sequence_id)
        chunk_rows = [(sequence_id, 0, self.draw(st.integers(1, len(tokens))))]
        self.add_answer(self.worker.prefill(make_prefill(self.draw(st.integers(1, 2)), row, chunk_rows=chunk_rows,
                                                         alongside=self.draw(st.booleans()))))

    def decode_batches(self) -> None:
        for batch, members in list(self.worker.shard_state.batches.items()):
            if any(sequence.is_prefilled for sequence in members.values()):
                self.add_answer(self.worker.decode(make_decode(batch)))

    def remove_random_sequence(self) -> None:
        batch, members = self.draw(st.sampled_from(sorted(self.worker.shard_state.batches.items(), key=lambda b: b[0])))
        removed_id = self.draw(st.sampled_from(sorted(members)))
        self.worker.filter(make_filter(batch, *[i for i in members if i != removed_id]))

    def join_all_batches(self) -> None:
        if len(self.worker.shard_state.batches) > 1:
            self.worker.concat(make_concat(*self.worker.shard_state.batches))

    def find_batch(self, sequence_id: int) -> int:
        return next(batch for batch, members in self.worker.shard_state.batches.items() if sequence_id in members)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), st.integers(1, 3))
def test_text_does_not_depend_on_batches_chunks_or_reentry(data: Any, tokens_per_step: int) -> None:
    walk = RandomBatchWalk(data.draw, tokens_per_step)
    for _ in range(data.draw(st.integers(1, 25))):
        walk.take_random_action()
    for i, tokens in walk.tokens_by_sequence.items():
        expected_text = make_expected_text(SequenceRow(i, walk.prompts[i], range(16), sampling_key=i),
                                           mean_output_length=30.0)
        assert tokens == [expected_text.get_token(index) for index in range(len(tokens))]


def test_sequence_goes_on_behind_tokens_that_it_never_generated_with_another_text() -> None:
    worker, foreign_tokens = make_worker(), [0, 500, 256]
    tokens = [*foreign_tokens]

    def prefill(worker: SimulatedWorker) -> None:
        tokens.extend(get_tokens_by_sequence(worker.prefill(make_prefill(1, SequenceRow(
            7, [*PROMPT_TOKENS, *tokens], range(8), num_prompt_tokens=len(PROMPT_TOKENS)))))[7])
    prefill(worker)
    for _ in range(20):
        tokens.extend(get_tokens_by_sequence(worker.decode(make_decode(1)))[7])
    own_text = make_expected_text(SequenceRow(7, PROMPT_TOKENS, [0, 1]))
    assert [own_text.get_token(index) for index in range(3, len(tokens))] != tokens[3:]
    expected_text = make_expected_text(SequenceRow(7, PROMPT_TOKENS, [0, 1]))
    expected_text.continue_from_tokens(foreign_tokens)
    prefill(make_worker())  # as after the loss of the shards
    assert [expected_text.get_token(index) for index in range(3, len(tokens))] == tokens[3:]


def test_a_cached_prefix_of_another_prompt_fails_the_step() -> None:
    worker = make_worker()
    worker.prefill(make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1])))
    with pytest.raises(KVCacheMismatch, match="holds something else"):
        worker.prefill(make_prefill(1, SequenceRow(8, PROMPT_TOKENS[::-1], [0, 2], num_cached=16)))


def test_a_cached_prefix_of_another_adapter_fails_the_step() -> None:
    worker = make_worker()
    worker.load_resource(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=3))
    worker.prefill(make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1])))
    with pytest.raises(KVCacheMismatch, match="holds something else"):
        worker.prefill(make_prefill(1, SequenceRow(8, PROMPT_TOKENS, [0, 2], num_cached=16, adapter_id=3)))


def test_step_may_yield_several_tokens_but_none_after_the_end_token() -> None:
    worker = make_worker(tokens_per_step=4, mean_output_length=12.0)
    worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, range(12))))
    bursts = [get_tokens_by_sequence(worker.decode(make_decode(1)))[7] for _ in range(30)]
    assert {len(burst) for burst in bursts} == {1, 2, 3, 4}
    assert any(burst[-1] == END_TOKEN for burst in bursts)
    assert not any(END_TOKEN in burst[:-1] for burst in bursts)


def test_step_takes_the_time_of_the_cost_model() -> None:
    sleep_seconds: list[float] = []
    worker = make_worker(sleep_seconds=sleep_seconds, seconds_per_step=1.0, seconds_per_row=0.1,
                         seconds_per_chunk_token=0.01, seconds_per_place=0.001, time_scale=0.5)
    first = worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]),
                                        SequenceRow(8, PROMPT_TOKENS, [1, 2]), chunk_rows=[(7, 0, 3), (8, 0, 10)]))
    assert first.forward_seconds == pytest.approx(1.0 + 2 * 0.1 + 13 * 0.01 + (3 + 10) * 0.001)
    second = worker.prefill(make_prefill(1, chunk_rows=[(8, 10, 13)], alongside=True))
    assert second.forward_seconds == pytest.approx(1.0 + 2 * 0.1 + 13 * 0.01 + (4 + 23) * 0.001)
    assert sleep_seconds == [first.forward_seconds / 2, second.forward_seconds / 2]


def test_warmup_measurements_follow_the_cost_model() -> None:
    warmup = make_worker(seconds_per_step=1.0, seconds_per_row=0.1, seconds_per_chunk_token=0.01,
                         seconds_per_place=0.001).info().warmup
    columns = zip(warmup.rows, warmup.chunk_tokens, warmup.context, warmup.seconds, strict=True)
    for rows, tokens, context, seconds in columns:
        assert seconds == pytest.approx(1.0 + rows * 0.1 + tokens * 0.01 + context * 0.001)


def test_time_scale_of_zero_never_sleeps() -> None:
    sleep_seconds: list[float] = []
    make_worker(sleep_seconds=sleep_seconds,
                time_scale=0.0).prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
    assert not sleep_seconds


def test_other_ranks_keep_the_same_shard_state_and_return_no_rows() -> None:
    workers = make_worker(rank=0), make_worker(rank=1)
    answers = [worker.prefill(make_prefill(1, SequenceRow(7, PROMPT_TOKENS, [0, 1], prompt_logprobs=True)))
               for worker in workers]
    assert workers[0].shard_state.batches == workers[1].shard_state.batches
    assert [len(answer.sequences) + len(answer.prompt_sequences) for answer in answers] == [2, 0]


@pytest.mark.parametrize(("kind", "config"), [(pb.KIND_ADAPTER, "adapters"), (pb.KIND_GRAMMAR, "grammars")])
def test_unsupported_resources_are_not_loaded(kind: pb.Kind, config: str) -> None:
    with pytest.raises(RejectedMessage, match="takes no KIND"):
        make_worker(**{config: False}).load_resource(pb.LoadRequest(epoch=1, kind=kind, id=3))


# -- faults


def test_die_fault_ends_the_process() -> None:
    worker = make_worker(faults="die@prefill")
    with pytest.raises(ProcessExit):
        worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
    assert worker.faults[0].has_fired


def test_hang_fault_sleeps_forever() -> None:
    sleep_seconds: list[float] = []
    make_worker(sleep_seconds=sleep_seconds,
                faults="hang@prefill").prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
    assert sleep_seconds[0] == MAX_SLEEP_SECONDS


def test_close_wakes_up_a_hanging_worker() -> None:
    worker = SimulatedWorker(ShardConfig(simulated=SimulatedConfig(faults="hang@reset")))
    worker.close()
    assert worker.reset(pb.ResetRequest(epoch=1)).epoch == 1


def test_slow_fault_adds_to_the_step_time() -> None:
    sleep_seconds: list[float] = []
    worker = make_worker(sleep_seconds=sleep_seconds, time_scale=0.0, seconds_per_step=1.0, seconds_per_row=0.0,
                         seconds_per_chunk_token=0.0, seconds_per_place=0.0, faults="slow@prefill:1:0.5")
    assert worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]))).forward_seconds == 1.5
    assert sleep_seconds == [0.5]


def test_late_fault_delays_one_answer() -> None:
    worker = make_worker(faults="late@prefill:1:0.5")
    worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]), epoch=1, order=4))
    assert [worker.pop_answer_delay(1, 3), worker.pop_answer_delay(1, 4),
            worker.pop_answer_delay(1, 4)] == [0.0, 0.5, 0.0]


def test_fail_sequence_fault_fails_one_sequence_of_the_step() -> None:
    worker = make_worker(faults="fail_sequence@prefill:1:1")
    rows = (SequenceRow(7, SHORT_PROMPT_TOKENS, [0]), SequenceRow(8, SHORT_PROMPT_TOKENS, [1], sampling_key=1),
            SequenceRow(9, SHORT_PROMPT_TOKENS, [2], sampling_key=2))
    answer = worker.prefill(make_prefill(1, *rows))
    assert (list(answer.sequences), list(answer.failed), list(answer.failures)) == ([7, 9], [8], [pb.NON_FINITE])


def test_failed_sequence_is_reported_in_every_later_step() -> None:
    worker = make_worker(faults="fail_sequence@prefill")
    worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]), SequenceRow(8, SHORT_PROMPT_TOKENS, [1])))
    answer = worker.decode(make_decode(1))
    assert (list(answer.sequences), list(answer.failed), list(answer.failures)) == ([8], [7], [pb.NON_FINITE])


def test_faults_before_a_call_runs_change_nothing() -> None:
    worker = make_worker(faults="refuse@prefill:1;step_error@prefill:2;exhaust@prefill:3")
    for error in (RejectedMessage, SimulatedStepError, StepOutOfMemory):
        with pytest.raises(error):
            worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
    assert not worker.shard_state.sequences


def test_poison_fails_every_step_that_contains_it() -> None:
    worker = make_worker(faults="poison@99")
    worker.prefill(make_prefill(1, SequenceRow(7, [1, 2], [0])))
    assert not worker.faults[0].has_fired
    for _ in range(2):
        with pytest.raises(SimulatedStepError, match="sequence 8 is poisonous"):
            worker.prefill(make_prefill(1, SequenceRow(8, SHORT_PROMPT_TOKENS, [1])))
        assert worker.faults[0].has_fired
        worker.reset(pb.ResetRequest(epoch=2))


@pytest.mark.parametrize(("wrong", "sequences", "tokens"), [
    ("unknown", [7, 8, UNKNOWN_SEQUENCE_ID], 3), ("missing", [7], 1), ("token", [7, 8], 2), ("count", [7, 8], 3)])
def test_each_wrong_fault_corrupts_one_part_of_a_step_answer(wrong: str, sequences: list[int], tokens: int) -> None:
    worker = make_worker(faults=f"wrong@prefill:1:{wrong}")
    answer = worker.prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0]),
                                         SequenceRow(8, SHORT_PROMPT_TOKENS, [1])))
    assert list(answer.sequences) == sequences
    assert len(answer.tokens) == tokens
    assert (max(answer.tokens) == 512) == (wrong == "token")


def test_embedding_depends_on_tokens_and_adapter() -> None:
    worker = make_worker()
    worker.load_resource(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5))
    answer = worker.embed(make_embed(SHORT_PROMPT_TOKENS, SHORT_PROMPT_TOKENS, PROMPT_TOKENS, adapters=[0, 5, 0]))
    texts = [PoolingText(SHORT_PROMPT_TOKENS), PoolingText(SHORT_PROMPT_TOKENS, 5), PoolingText(PROMPT_TOKENS)]
    assert get_embeddings(answer) == [make_embedding(text, 16, 0) for text in texts]
    assert len({tuple(vector) for vector in get_embeddings(answer)}) == 3
    assert answer.width == 16


def test_labels_depend_on_token_and_adapter() -> None:
    answer = make_worker(num_labels=5).embed(make_embed([10, 11], [14], wanted=pb.LABELS))
    assert get_labels_by_text(answer) == [[(0, 1.0), (1, 0.9921875)], [(4, 1.0)]]
    assert make_labels(PoolingText([10], adapter_id=3), 5, 0)[0] == [3]


def test_embed_takes_the_time_of_the_cost_model() -> None:
    sleep_seconds: list[float] = []
    worker = make_worker(sleep_seconds=sleep_seconds, seconds_per_step=1.0, seconds_per_row=0.5,
                         seconds_per_chunk_token=0.25, seconds_per_place=0.125, faults="slow@embed:2:9")
    seconds = [worker.embed(make_embed(SHORT_PROMPT_TOKENS, [1])).forward_seconds for _ in range(2)]
    assert sleep_seconds == seconds == [1 + 2 * 0.5 + 4 * 0.375, 3.5 + 9]


def test_failed_text_has_no_embedding() -> None:
    answer = make_worker(faults="fail_sequence@embed:1:1").embed(make_embed(SHORT_PROMPT_TOKENS, PROMPT_TOKENS, [5]))
    assert (list(answer.failed), list(answer.failures)) == ([1], [pb.NON_FINITE])
    assert get_embeddings(answer) == [make_embedding(text, 16, 0)
                                      for text in (PoolingText(SHORT_PROMPT_TOKENS), PoolingText([5]))]


def test_poisoned_text_fails_the_step() -> None:
    worker = make_worker(faults="poison@99")
    worker.embed(make_embed([1, 2]))
    with pytest.raises(SimulatedStepError, match="a text is poisonous"):
        worker.embed(make_embed([1, 2], SHORT_PROMPT_TOKENS))
    assert worker.faults[0].has_fired


@pytest.mark.parametrize(("wrong", "failed", "values"), [
    ("unknown", [2], 32), ("missing", [], 16), ("token", [], 32), ("count", [], 33)])
def test_each_wrong_fault_corrupts_one_part_of_an_embed_answer(wrong: str, failed: list[int], values: int) -> None:
    answer = make_worker(faults=f"wrong@embed:1:{wrong}").embed(make_embed(SHORT_PROMPT_TOKENS, PROMPT_TOKENS))
    assert (list(answer.failed), len(answer.values)) == (failed, values)
    assert (answer.values[0] != answer.values[0]) == (wrong == "token")


@pytest.mark.parametrize(("wrong", "labels", "scores"), [
    ("missing", 1, 1), ("token", 2, 2), ("count", 2, 3)])
def test_each_wrong_fault_corrupts_one_part_of_a_label_answer(wrong: str, labels: int, scores: int) -> None:
    answer = make_worker(num_labels=5, faults=f"wrong@embed:1:{wrong}").embed(make_embed([10], [11], wanted=pb.LABELS))
    assert (len(answer.labels), len(answer.scores)) == (labels, scores)
    assert (max(answer.labels) >= 5) == (wrong == "token")


def test_unsupported_outputs_are_rejected() -> None:
    for wanted, model in ((pb.LABELS, {}), (pb.VECTORS, {"embedding_width": 0})):
        with pytest.raises(RejectedMessage, match=f"this shard gives no {pb.Wanted.Name(wanted)}"):
            make_worker(**model).embed(make_embed(SHORT_PROMPT_TOKENS, wanted=wanted))
    with pytest.raises(RejectedMessage, match="this shard does not generate"):
        make_worker(generation=False).prefill(make_prefill(1, SequenceRow(7, SHORT_PROMPT_TOKENS, [0])))
