"""The simulated worker: text depends on the request alone, mix-ups raise errors, and faults occur as scripted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard.config import ShardConfig, SimulatedConfig
from shard.errors import Exhausted
from shard.pb import shard_pb2 as pb
from shard.simulator.invalid_answers import NOBODY
from shard.simulator.text import END, MixUp, Tale, labels_of, vector_of
from shard.simulator.worker import FOREVER, SimulatedWorker, StepError
from shard.state.columns import Text
from shard.state.ledger import Refused
from tests.shard.messages import (
    Row,
    concat,
    decode,
    embed,
    filtered,
    labelled_rows,
    prefill,
    rows_of,
    vectors_of,
)

PROMPT = list(b"weave me something nice")
SHORT = list(b"abc")
LIMITS = pb.WarmupRequest(block_size=16, max_prefill_tokens=512, max_batch_size=64, max_total_tokens=256)


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


def new_worker(rank: int = 0, slept: list[float] | None = None, **model: Any) -> SimulatedWorker:
    config = ShardConfig(rank=rank, world_size=rank + 1, simulated=SimulatedConfig(**model))
    worker = SimulatedWorker(config, sleep=([] if slept is None else slept).append, exit=crash)
    worker.warmup(LIMITS)
    worker.reset(pb.ResetRequest(epoch=1))
    return worker


def tale(row: Row, seed: int = 0, mean: float = 0.0) -> Tale:
    """Return the text that this new sequence should get."""
    worker = new_worker(seed=seed, mean_output_length=mean)
    worker.prefill(prefill(1, row))
    found: Tale = worker.ledger.sequences[row.id].memory.tale
    return found


class Journey:
    """Sequences on a random path through batches; `said` holds the tokens of each."""

    def __init__(self, draw: Any, tokens_per_step: int) -> None:
        self.worker = new_worker(tokens_per_step=tokens_per_step, mean_output_length=30.0)
        self.draw = draw
        self.prompts = {i: draw(st.lists(st.integers(0, 255), min_size=1, max_size=40)) for i in range(4)}
        self.said: dict[int, list[int]] = {i: [] for i in self.prompts}

    def hear(self, answer: pb.StepAnswer) -> None:
        for i, tokens in rows_of(answer).items():
            self.said[i] += tokens

    def go(self) -> None:
        held = self.worker.ledger.sequences
        waiting, unfinished = sorted(self.prompts.keys() - held.keys()), [i for i in held if not held[i].ready]
        if waiting and self.draw(st.booleans()):
            self.enter(self.draw(st.sampled_from(waiting)))
        elif unfinished and self.draw(st.booleans()):
            sequence = held[self.draw(st.sampled_from(unfinished))]
            length = self.draw(st.integers(1, sequence.num_given - sequence.computed))
            run = [(sequence.id, sequence.computed, length)]
            self.hear(self.worker.prefill(prefill(self.batch_of(sequence.id), run=run,
                                                  alongside=self.draw(st.booleans()))))
        elif held:
            self.draw(st.sampled_from([self.decode, self.decode, self.leave, self.join]))()

    def enter(self, i: int) -> None:
        tokens = self.prompts[i] + self.said[i]
        row = Row(i, tokens, range(16 * i, 16 * i + 16), prompt=len(self.prompts[i]), key=i)
        run = [(i, 0, self.draw(st.integers(1, len(tokens))))]
        self.hear(self.worker.prefill(prefill(self.draw(st.integers(1, 2)), row, run=run,
                                              alongside=self.draw(st.booleans()))))

    def decode(self) -> None:
        for batch, members in list(self.worker.ledger.batches.items()):
            if any(sequence.ready for sequence in members.values()):
                self.hear(self.worker.decode(decode(batch)))

    def leave(self) -> None:
        batch, members = self.draw(st.sampled_from(sorted(self.worker.ledger.batches.items(), key=lambda b: b[0])))
        gone = self.draw(st.sampled_from(sorted(members)))
        self.worker.filter(filtered(batch, *[i for i in members if i != gone]))

    def join(self) -> None:
        if len(self.worker.ledger.batches) > 1:
            self.worker.concat(concat(*self.worker.ledger.batches))

    def batch_of(self, i: int) -> int:
        return next(batch for batch, members in self.worker.ledger.batches.items() if i in members)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), st.integers(1, 3))
def test_what_is_said_does_not_depend_on_company_chunks_or_being_sent_again(data: Any, tokens_per_step: int) -> None:
    journey = Journey(data.draw, tokens_per_step)
    for _ in range(data.draw(st.integers(1, 25))):
        journey.go()
    for i, said in journey.said.items():
        own = tale(Row(i, journey.prompts[i], range(16), key=i), mean=30.0)
        assert said == [own.token(index) for index in range(len(said))]


def test_a_sequence_that_was_sent_with_the_tokens_of_another_fails_the_step() -> None:
    said = tale(Row(7, SHORT, [0])).say(0, 1)[0]
    with pytest.raises(MixUp, match="never said"):
        new_worker().prefill(prefill(1, Row(7, [*PROMPT, *said], [0, 1], prompt=len(PROMPT))))


def test_a_cached_prefix_of_another_prompt_fails_the_step() -> None:
    worker = new_worker()
    worker.prefill(prefill(1, Row(7, PROMPT, [0, 1])))
    with pytest.raises(MixUp, match="holds something else"):
        worker.prefill(prefill(1, Row(8, PROMPT[::-1], [0, 2], cached=16)))


def test_a_cached_prefix_of_another_adapter_fails_the_step() -> None:
    worker = new_worker()
    worker.load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=3))
    worker.prefill(prefill(1, Row(7, PROMPT, [0, 1])))
    with pytest.raises(MixUp, match="holds something else"):
        worker.prefill(prefill(1, Row(8, PROMPT, [0, 2], cached=16, adapter=3)))


def test_a_step_yields_several_tokens_where_it_may_and_none_after_the_end() -> None:
    worker = new_worker(tokens_per_step=4, mean_output_length=12.0)
    worker.prefill(prefill(1, Row(7, SHORT, range(12))))
    bursts = [rows_of(worker.decode(decode(1)))[7] for _ in range(30)]
    assert {len(burst) for burst in bursts} == {1, 2, 3, 4}
    assert any(burst[-1] == END for burst in bursts)
    assert not any(END in burst[:-1] for burst in bursts)


def test_a_step_takes_what_the_cost_model_says() -> None:
    slept: list[float] = []
    worker = new_worker(slept=slept, seconds_per_step=1.0, seconds_per_row=0.1, seconds_per_chunk_token=0.01,
                        seconds_per_place=0.001, time_scale=0.5)
    first = worker.prefill(prefill(1, Row(7, SHORT, [0]), Row(8, PROMPT, [1, 2]), run=[(7, 0, 3), (8, 0, 10)]))
    assert first.forward_seconds == pytest.approx(1.0 + 2 * 0.1 + 13 * 0.01 + (3 + 10) * 0.001)
    second = worker.prefill(prefill(1, run=[(8, 10, 13)], alongside=True))
    assert second.forward_seconds == pytest.approx(1.0 + 2 * 0.1 + 13 * 0.01 + (4 + 23) * 0.001)
    assert slept == [first.forward_seconds / 2, second.forward_seconds / 2]


def test_warmup_measures_by_the_same_cost_model() -> None:
    found = new_worker(seconds_per_step=1.0, seconds_per_row=0.1, seconds_per_chunk_token=0.01,
                       seconds_per_place=0.001).info().warmup
    columns = zip(found.rows, found.chunk_tokens, found.context, found.seconds, strict=True)
    for rows, tokens, context, seconds in columns:
        assert seconds == pytest.approx(1.0 + rows * 0.1 + tokens * 0.01 + context * 0.001)


def test_without_time_nothing_sleeps() -> None:
    slept: list[float] = []
    new_worker(slept=slept, time_scale=0.0).prefill(prefill(1, Row(7, SHORT, [0])))
    assert not slept


def test_other_ranks_keep_the_same_books_and_answer_without_rows() -> None:
    workers = new_worker(rank=0), new_worker(rank=1)
    answers = [worker.prefill(prefill(1, Row(7, PROMPT, [0, 1], prompt_logprobs=True))) for worker in workers]
    assert workers[0].ledger.batches == workers[1].ledger.batches
    assert [len(answer.sequences) + len(answer.prompt_sequences) for answer in answers] == [2, 0]


@pytest.mark.parametrize(("kind", "config"), [(pb.KIND_ADAPTER, "adapters"), (pb.KIND_GRAMMAR, "grammars")])
def test_what_the_model_does_not_take_is_not_loaded(kind: pb.Kind, config: str) -> None:
    with pytest.raises(Refused, match="takes no KIND"):
        new_worker(**{config: False}).load(pb.LoadRequest(epoch=1, kind=kind, id=3))


# -- faults


def test_die_ends_the_process() -> None:
    worker = new_worker(faults="die@prefill")
    with pytest.raises(Crash):
        worker.prefill(prefill(1, Row(7, SHORT, [0])))
    assert worker.faults[0].fired


def test_hang_sleeps_for_ever() -> None:
    slept: list[float] = []
    new_worker(slept=slept, faults="hang@prefill").prefill(prefill(1, Row(7, SHORT, [0])))
    assert slept[0] == FOREVER


def test_a_worker_that_hangs_is_woken_up_by_close() -> None:
    worker = SimulatedWorker(ShardConfig(simulated=SimulatedConfig(faults="hang@reset")))
    worker.close()
    assert worker.reset(pb.ResetRequest(epoch=1)).epoch == 1


def test_slow_adds_to_the_time_of_the_step() -> None:
    slept: list[float] = []
    worker = new_worker(slept=slept, time_scale=0.0, seconds_per_step=1.0, seconds_per_row=0.0,
                        seconds_per_chunk_token=0.0, seconds_per_place=0.0, faults="slow@prefill:1:0.5")
    assert worker.prefill(prefill(1, Row(7, SHORT, [0]))).forward_seconds == 1.5
    assert slept == [0.5]


def test_late_keeps_one_answer_back() -> None:
    worker = new_worker(faults="late@prefill:1:0.5")
    worker.prefill(prefill(1, Row(7, SHORT, [0]), epoch=1, order=4))
    assert [worker.lateness(1, 3), worker.lateness(1, 4), worker.lateness(1, 4)] == [0.0, 0.5, 0.0]


def test_fail_sequence_fails_one_of_the_step() -> None:
    worker = new_worker(faults="fail_sequence@prefill:1:1")
    rows = Row(7, SHORT, [0]), Row(8, SHORT, [1], key=1), Row(9, SHORT, [2], key=2)
    answer = worker.prefill(prefill(1, *rows))
    assert (list(answer.sequences), list(answer.failed), list(answer.failures)) == ([7, 9], [8], [pb.NON_FINITE])


def test_who_failed_is_reported_in_every_step_it_would_be_in() -> None:
    worker = new_worker(faults="fail_sequence@prefill")
    worker.prefill(prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1])))
    answer = worker.decode(decode(1))
    assert (list(answer.sequences), list(answer.failed), list(answer.failures)) == ([8], [7], [pb.NON_FINITE])


def test_whatever_befalls_a_call_before_it_did_anything_changes_nothing() -> None:
    worker = new_worker(faults="refuse@prefill:1;step_error@prefill:2;exhaust@prefill:3")
    for error in (Refused, StepError, Exhausted):
        with pytest.raises(error):
            worker.prefill(prefill(1, Row(7, SHORT, [0])))
    assert not worker.ledger.sequences


def test_poison_fails_every_step_that_holds_it() -> None:
    worker = new_worker(faults="poison@99")
    worker.prefill(prefill(1, Row(7, [1, 2], [0])))
    assert not worker.faults[0].fired
    for _ in range(2):
        with pytest.raises(StepError, match="sequence 8 is poisonous"):
            worker.prefill(prefill(1, Row(8, SHORT, [1])))
        assert worker.faults[0].fired
        worker.reset(pb.ResetRequest(epoch=2))


@pytest.mark.parametrize(("wrong", "sequences", "tokens"), [
    ("unknown", [7, 8, NOBODY], 3), ("missing", [7], 1), ("token", [7, 8], 2), ("count", [7, 8], 3)])
def test_wrong_answers_are_wrong_in_one_way(wrong: str, sequences: list[int], tokens: int) -> None:
    worker = new_worker(faults=f"wrong@prefill:1:{wrong}")
    answer = worker.prefill(prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1])))
    assert list(answer.sequences) == sequences
    assert len(answer.tokens) == tokens
    assert (max(answer.tokens) == 512) == (wrong == "token")


def test_a_vector_tells_tokens_and_adapter() -> None:
    worker = new_worker()
    worker.load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER, id=5))
    answer = worker.embed(embed(SHORT, SHORT, PROMPT, adapters=[0, 5, 0]))
    texts = [Text(SHORT), Text(SHORT, 5), Text(PROMPT)]
    assert vectors_of(answer) == [vector_of(text, 16, 0) for text in texts]
    assert len({tuple(vector) for vector in vectors_of(answer)}) == 3
    assert answer.width == 16


def test_labels_follow_from_the_token_and_the_adapter() -> None:
    answer = new_worker(num_labels=5).embed(embed([10, 11], [14], wanted=pb.LABELS))
    assert labelled_rows(answer) == [[(0, 1.0), (1, 0.9921875)], [(4, 1.0)]]
    assert labels_of(Text([10], adapter=3), 5, 0)[0] == [3]


def test_texts_take_the_time_of_the_cost_model() -> None:
    slept: list[float] = []
    worker = new_worker(slept=slept, seconds_per_step=1.0, seconds_per_row=0.5, seconds_per_chunk_token=0.25,
                        seconds_per_place=0.125, faults="slow@embed:2:9")
    seconds = [worker.embed(embed(SHORT, [1])).forward_seconds for _ in range(2)]
    assert slept == seconds == [1 + 2 * 0.5 + 4 * 0.375, 3.5 + 9]


def test_a_text_that_fails_has_no_row() -> None:
    answer = new_worker(faults="fail_sequence@embed:1:1").embed(embed(SHORT, PROMPT, [5]))
    assert (list(answer.failed), list(answer.failures)) == ([1], [pb.NON_FINITE])
    assert vectors_of(answer) == [vector_of(text, 16, 0) for text in (Text(SHORT), Text([5]))]


def test_a_poisonous_text_fails_the_step() -> None:
    worker = new_worker(faults="poison@99")
    worker.embed(embed([1, 2]))
    with pytest.raises(StepError, match="a text is poisonous"):
        worker.embed(embed([1, 2], SHORT))
    assert worker.faults[0].fired


@pytest.mark.parametrize(("wrong", "failed", "values"), [
    ("unknown", [2], 32), ("missing", [], 16), ("token", [], 32), ("count", [], 33)])
def test_wrong_answers_to_texts_are_wrong_in_one_way(wrong: str, failed: list[int], values: int) -> None:
    answer = new_worker(faults=f"wrong@embed:1:{wrong}").embed(embed(SHORT, PROMPT))
    assert (list(answer.failed), len(answer.values)) == (failed, values)
    assert (answer.values[0] != answer.values[0]) == (wrong == "token")


@pytest.mark.parametrize(("wrong", "labels", "scores"), [
    ("missing", 1, 1), ("token", 2, 2), ("count", 2, 3)])
def test_wrong_labels_are_wrong_in_one_way(wrong: str, labels: int, scores: int) -> None:
    answer = new_worker(num_labels=5, faults=f"wrong@embed:1:{wrong}").embed(embed([10], [11], wanted=pb.LABELS))
    assert (len(answer.labels), len(answer.scores)) == (labels, scores)
    assert (max(answer.labels) >= 5) == (wrong == "token")


def test_what_a_model_lacks_is_refused() -> None:
    for wanted, model in ((pb.LABELS, {}), (pb.VECTORS, {"embedding_width": 0})):
        with pytest.raises(Refused, match=f"this shard gives no {pb.Wanted.Name(wanted)}"):
            new_worker(**model).embed(embed(SHORT, wanted=wanted))
    with pytest.raises(Refused, match="this shard does not generate"):
        new_worker(generation=False).prefill(prefill(1, Row(7, SHORT, [0])))
