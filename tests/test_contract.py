"""The contract between router and shards, rule by rule, against every kind of worker over real gRPC."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.small_checkpoints import tiny_checkpoint, tiny_encoder

from shard.errors import Exhausted
from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker
from shard.workers.decoder import ModelWorker
from shard.workers.encoder import EncoderWorker
from tests.shard.messages import (
    WARMUP,
    Row,
    chunks,
    concat,
    decode,
    embed,
    filtered,
    grants,
    join,
    keep,
    labelled_rows,
    prefill,
    rows_of,
    sequences,
    vectors_of,
)
from tests.shard.peer import Peer, code_of
from tests.shard.peer import play as play_with

Code = grpc.StatusCode
WORKERS = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "model": lambda model, config: ModelWorker(replace(config, model=str(model), threads=1)),
}
TELLERS = {  # workers that compute embeddings
    "simulated": lambda _, config: SimulatedWorker(config),
    "decoder": lambda folder, config: ModelWorker(
        replace(config, model=str(tiny_checkpoint(folder, "llama")), threads=1)),
    "encoder": lambda folder, config: EncoderWorker(
        replace(config, model=str(tiny_encoder(folder, "bert", max_position_embeddings=256)), threads=1)),
}
LABELLERS = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "encoder": lambda folder, config: EncoderWorker(
        replace(config, model=str(tiny_encoder(folder, "bert", labels=True, max_position_embeddings=256)), threads=1)),
}
PROMPT = list(b"weave me something nice")
SHORT = list(b"abc")


@pytest.fixture(params=WORKERS)
def play(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Callable[..., None]:
    return partial(play_with, partial(WORKERS[request.param], model), tmp_path)


@pytest.fixture(params=TELLERS)
def play_texts(request: pytest.FixtureRequest, tmp_path: Path,
               tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Return `play` for each kind of worker that computes embeddings."""
    return partial(play_with, partial(TELLERS[request.param], tmp_path_factory.getbasetemp()), tmp_path)


@pytest.fixture(params=LABELLERS)
def play_labels(request: pytest.FixtureRequest, tmp_path: Path,
                tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Return `play` for each kind of worker that computes labels and no embeddings."""
    labeller = partial(LABELLERS[request.param], tmp_path_factory.getbasetemp())
    return partial(play_with, labeller, tmp_path, num_labels=5, embedding_width=0, generation=False)


@pytest.fixture
def play_simulated(tmp_path: Path) -> Callable[..., None]:
    """Return `play` for the simulated worker, for features that no worker with a real model has yet."""
    return partial(play_with, SimulatedWorker, tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", max_position_embeddings=256)


class TestContract:
    def test_an_early_message_waits_for_those_before_it(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            second = await shard.early(decode(1), order=2)
            first = await shard.send(prefill(1, Row(7, SHORT, [0])), order=1)
            assert first.order == 1
            assert (await second).order == 2
        play(story)

    @pytest.mark.parametrize("arrival", list(permutations(range(3))))
    def test_any_order_of_arrival_leads_to_the_same(self, play: Any, arrival: tuple[int, ...]) -> None:
        async def story(shard: Peer) -> None:
            story = [prefill(1, Row(7, SHORT, [0]), Row(8, PROMPT, [1, 2])), filtered(1, 8), decode(1)]
            calls = [shard.send(story[i], order=i + 1) for i in arrival]
            answers = await asyncio.gather(*calls)
            assert sorted(answer.order for answer in answers) == [1, 2, 3]
            assert list(answers[arrival.index(2)].sequences) == [8]
        play(story)

    def test_a_message_that_was_taken_before_changes_nothing_and_the_epoch_goes_on(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            state = shard.state()
            assert await shard.code(filtered(1), order=1) == Code.ALREADY_EXISTS
            assert shard.state() == state
            assert await shard.code(decode(1)) == Code.OK
        play(story)

    def test_a_message_that_is_held_back_was_taken(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            early = await shard.early(decode(1), order=2)
            assert await shard.code(decode(1), order=2) == Code.ALREADY_EXISTS
            await shard.send(prefill(1, Row(7, SHORT, [0])), order=1)
            assert (await early).order == 2
        play(story)

    def test_a_refused_message_uses_up_its_number_and_ends_the_epoch(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            state = shard.state()
            assert await shard.code(decode(2)) == Code.FAILED_PRECONDITION
            assert await shard.code(decode(1), order=2) == Code.ALREADY_EXISTS
            assert await shard.code(decode(1), order=3) == Code.FAILED_PRECONDITION
            assert await shard.code(decode(1), order=9) == Code.FAILED_PRECONDITION
            assert shard.state() == state
        play(story)

    def test_a_malformed_message_ends_the_epoch_as_well(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            assert await shard.code(pb.FilterRequest(batch=1)) == Code.INVALID_ARGUMENT
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.FAILED_PRECONDITION
        play(story)

    def test_what_was_held_back_is_refused_when_the_epoch_ends(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            early = await shard.early(prefill(1, Row(7, SHORT, [0])), order=3)
            assert await shard.code(decode(1), order=1) == Code.FAILED_PRECONDITION
            assert await code_of(early) == Code.FAILED_PRECONDITION
            assert await shard.code(prefill(1, Row(7, SHORT, [0])), order=3) == Code.ALREADY_EXISTS
        play(story)

    def test_orders_are_counted_from_one(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            assert await shard.code(decode(1), order=0) == Code.INVALID_ARGUMENT
            assert await shard.code(prefill(1, Row(7, SHORT, [0])), order=1) == Code.OK
        play(story)

    def test_a_message_that_never_comes_ends_the_epoch(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            assert await shard.code(decode(1), order=3) == Code.FAILED_PRECONDITION
            assert await shard.code(decode(1), order=2) == Code.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.OK
        play(story, gap_timeout=0.05)

    @pytest.mark.parametrize(("error", "code"), [
        (RuntimeError("no"), Code.INTERNAL), (Exhausted("no memory"), Code.RESOURCE_EXHAUSTED)], ids=["failed", "full"])
    def test_a_failed_step_says_so_and_ends_the_epoch(self, play: Any, monkeypatch: pytest.MonkeyPatch,
                                                      error: Exception, code: Code) -> None:
        def fail(request: Any) -> None:
            raise error

        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            with monkeypatch.context() as patch:
                patch.setattr(shard.worker, "decode", fail)
                assert await shard.code(decode(1)) == code
            assert await shard.code(decode(1)) == Code.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.OK
        play(story)

    def test_a_message_is_applied_even_when_the_caller_hangs_up(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            early = await shard.early(decode(1), order=2)
            early.cancel()
            await shard.send(prefill(1, Row(7, SHORT, [0])), order=1)
            assert (await shard.send(decode(1), order=3)).order == 3
            assert shard.worker.ledger.sequences[7].computed == len(SHORT) + 2
        play(story)

    # -- epochs

    def test_before_the_first_reset_nothing_is_applied(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.stub.Warmup(WARMUP)
            assert (await shard.stub.Info(pb.InfoRequest())).epoch == 0
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.FAILED_PRECONDITION
        play(story, fresh=True)

    def test_before_warmup_there_is_no_cache(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.reset()
            assert not (await shard.stub.Info(pb.InfoRequest())).HasField("warmup")
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.FAILED_PRECONDITION
        play(story, fresh=True)

    @pytest.mark.parametrize("epoch", [0, 2, 4])
    def test_a_message_of_another_epoch_is_refused_and_changes_nothing(self, play: Any, epoch: int) -> None:
        async def story(shard: Peer) -> None:
            await shard.reset()
            await shard.reset()
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            state = shard.state()
            assert await shard.code(filtered(1), order=2, epoch=epoch) == Code.FAILED_PRECONDITION
            assert shard.state() == state
            assert await shard.code(decode(1)) == Code.OK
        play(story)

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_epochs_rise(self, play: Any, epoch: int) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            assert await code_of(shard.stub.Reset(pb.ResetRequest(epoch=epoch))) == Code.FAILED_PRECONDITION
            assert await shard.code(decode(1)) == Code.OK
        play(story)

    def test_reset_drops_batches_sequences_and_cached_blocks(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, PROMPT, [0, 1])))
            await shard.reset()
            ledger = shard.worker.ledger
            assert not ledger.batches
            assert not ledger.sequences
            assert not any(ledger.blocks.num_holders)
            cached = prefill(1, Row(7, PROMPT, [0, 1], cached=16))
            assert await shard.code(cached) == Code.FAILED_PRECONDITION
        play(story)

    def test_reset_ends_what_is_held_back(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            early = await shard.early(decode(1), order=2)
            await shard.reset()
            assert await code_of(early) == Code.FAILED_PRECONDITION
        play(story)

    def test_info_tells_the_epoch_and_what_warmup_found(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            info = await shard.stub.Info(pb.InfoRequest())
            assert info.epoch == 1
            assert info.warmup.block_size == 16
            assert 0 < info.warmup.num_blocks <= 32
            columns = [info.warmup.rows, info.warmup.chunk_tokens, info.warmup.context, info.warmup.seconds]
            assert len({len(column) for column in columns}) == 1
        play(story)

    def test_warmup_comes_once(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            assert await code_of(shard.stub.Warmup(WARMUP)) == Code.FAILED_PRECONDITION
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.OK
        play(story)

    # -- adapters and grammars; more in test_adapter_contract.py

    def test_a_load_never_ends_an_epoch(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            load, unload = shard.stub.Load, shard.stub.Unload
            assert await code_of(load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER))) == Code.INVALID_ARGUMENT
            assert await code_of(load(pb.LoadRequest(epoch=1, id=5))) == Code.INVALID_ARGUMENT
            assert await code_of(load(pb.LoadRequest(epoch=2, kind=1, id=5))) == Code.FAILED_PRECONDITION
            assert await code_of(unload(pb.UnloadRequest(epoch=1, kind=1, id=5))) == Code.FAILED_PRECONDITION
            assert await code_of(unload(pb.UnloadRequest(epoch=0, kind=1, id=5))) == Code.FAILED_PRECONDITION
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.OK
        play(story)

    # -- embeddings and labels

    def test_every_text_gets_a_vector_that_does_not_depend_on_the_others(self, play_texts: Any) -> None:
        async def story(shard: Peer) -> None:
            assert (await shard.stub.Info(pb.InfoRequest())).embeddings
            both = await shard.send(embed(PROMPT, SHORT))
            assert (both.epoch, both.order, both.failed) == (1, 1, [])
            assert both.forward_seconds > 0
            first, second = vectors_of(both)
            assert len(first) == len(second) == both.width > 0
            assert first != second
            assert vectors_of(await shard.send(embed(SHORT, PROMPT))) == [second, first]
            assert vectors_of(await shard.send(embed(SHORT))) == [second]
        play_texts(story)

    def test_every_token_gets_a_label_and_a_score(self, play_labels: Any) -> None:
        async def story(shard: Peer) -> None:
            info = await shard.stub.Info(pb.InfoRequest())
            assert (info.classification, info.embeddings, info.generation) == (True, False, False)
            assert len(set(info.labels)) == 5
            answer = await shard.send(embed(PROMPT, SHORT, wanted=pb.LABELS))
            first, second = labelled_rows(answer)
            assert (len(first), len(second), len(answer.failed)) == (len(PROMPT), len(SHORT), 0)
            assert all(label < 5 and 0 < score <= 1 for label, score in first + second)
            assert labelled_rows(await shard.send(embed(SHORT, wanted=pb.LABELS))) == [second]
        play_labels(story)

    def test_texts_take_their_turn_among_the_steps(self, play: Any) -> None:
        """Pooling steps leave no state behind and take no part in batches."""
        async def story(shard: Peer) -> None:
            second = await shard.early(embed(SHORT), order=2)
            alone = await shard.send(prefill(1, Row(7, SHORT, [0])), order=1)
            state = shard.state()
            assert (await second).order == 2
            assert shard.state() == state
            again = prefill(2, Row(8, SHORT, [1]))
            assert rows_of(await shard.send(again, order=3))[8] == rows_of(alone)[7]
            assert list((await shard.send(decode(1), order=4)).sequences) == [7]
        play(story)

    def test_texts_may_come_over_the_lasting_call(self, play_texts: Any) -> None:
        async def story(shard: Peer) -> None:
            expected = await shard.send(embed(PROMPT, SHORT))
            line = shard.stub.Steps()
            await line.write(pb.StepMessage(embed=shard.numbered(embed(PROMPT, SHORT))))
            outcome = await line.read()
            assert outcome.WhichOneof("outcome") == "embed"
            assert (outcome.embed.order, outcome.embed.values) == (2, expected.values)
            await line.write(pb.StepMessage(embed=shard.numbered(embed())))
            assert (await line.read()).trouble.code == Code.INVALID_ARGUMENT.value[0]
            await line.done_writing()
            assert await line.read() == grpc.aio.EOF
        play_texts(story)

    @pytest.mark.parametrize("message", [
        embed(), embed(SHORT, []), embed(SHORT, [9999]), embed(SHORT, adapters=[1, 2]), embed([5] * 20_000),
        embed(SHORT, wanted=pb.WANTED_UNSPECIFIED), embed(SHORT, wanted=7),
        pb.EmbedRequest(wanted=pb.VECTORS, num_tokens=[4], tokens=SHORT)],
        ids=["none", "empty", "outside the vocabulary", "two adapters", "too long", "unspecified", "unknown", "ragged"])
    def test_texts_that_make_no_sense_are_malformed(self, play_texts: Any, message: Any) -> None:
        async def story(shard: Peer) -> None:
            assert await shard.code(pb.EmbedRequest.FromString(message.SerializeToString())) == Code.INVALID_ARGUMENT
            assert await shard.code(embed(SHORT)) == Code.FAILED_PRECONDITION
        play_texts(story)

    @pytest.mark.parametrize("message", [
        embed(SHORT, wanted=pb.LABELS), embed(SHORT, adapters=[5]), embed(*[[5] * 100] * 3)],
        ids=["labels", "adapter", "too many"])
    def test_texts_that_do_not_fit_are_refused(self, play_texts: Any, message: Any) -> None:
        async def story(shard: Peer) -> None:
            assert await shard.code(pb.EmbedRequest.FromString(message.SerializeToString())) == Code.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.code(embed(SHORT)) == Code.OK
        play_texts(story)

    def test_texts_wait_for_warmup(self, play_texts: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.reset()
            assert await shard.code(embed(SHORT)) == Code.FAILED_PRECONDITION
        play_texts(story, fresh=True)

    @pytest.mark.parametrize("message", [
        prefill(1, Row(7, SHORT, [0])), decode(1), filtered(1), concat(1, 2), embed(SHORT)],
        ids=["prefill", "decode", "filter", "concat", "vectors"])
    def test_who_only_labels_refuses_all_else(self, play_labels: Any, message: Any) -> None:
        async def story(shard: Peer) -> None:
            same = type(message).FromString(message.SerializeToString())
            assert await shard.code(same) == Code.FAILED_PRECONDITION
        play_labels(story)

    def test_only_rank_0_tells_of_texts(self, play_simulated: Any) -> None:
        async def story(*shards: Peer) -> None:
            first, second = await asyncio.gather(*(shard.send(embed(SHORT)) for shard in shards))
            assert (len(first.values), len(second.values)) == (16, 0)
            assert (second.epoch, second.order) == (1, 1)
        play_simulated(story, ranks=2)

    # -- steps

    def test_a_prompt_yields_its_first_token_when_it_is_complete(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            begun = await shard.send(prefill(1, Row(7, PROMPT, [0, 1]), run=[(7, 0, 16)]))
            assert not begun.sequences
            complete = await shard.send(prefill(1, run=[(7, 16, len(PROMPT) - 16)]))
            assert [len(tokens) for tokens in rows_of(complete).values()] == [1]
            assert complete.forward_seconds > 0
        play(story)

    def test_chunks_make_no_difference(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            whole = await shard.send(prefill(1, Row(7, PROMPT, [0, 1])))
            await shard.send(prefill(2, Row(8, PROMPT, [2, 3]), run=[(8, 0, 5)]))
            await shard.send(prefill(2, run=[(8, 5, 12)]))
            parts = await shard.send(prefill(2, run=[(8, 17, len(PROMPT) - 17)]))
            assert rows_of(whole)[7] == rows_of(parts)[8]
            assert whole.logprobs == parts.logprobs
        play(story)

    def test_decode_takes_every_ready_sequence_one_token_further(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            rows = Row(7, SHORT, [0]), Row(8, SHORT, [1], key=1), Row(9, PROMPT, [2, 3])
            await shard.send(prefill(1, *rows, run=[(7, 0, 3), (8, 0, 3), (9, 0, 16)]))
            answer = await shard.send(decode(1))
            assert list(answer.sequences) == [7, 8]
            assert len(answer.logprobs) == len(answer.tokens)
        play(story)

    def test_alongside_a_prompt_only_those_decode_that_were_ready_before(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            answer = await shard.send(prefill(1, Row(8, PROMPT, [1, 2]), alongside=True))
            assert {i: len(tokens) for i, tokens in rows_of(answer).items()} == {7: 1, 8: 1}
            ledger = shard.worker.ledger
            assert [s.computed for s in ledger.sequences.values()] == [len(SHORT) + 1, len(PROMPT)]
        play(story)

    def test_without_alongside_the_ready_ones_rest(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            assert list(rows_of(await shard.send(prefill(1, Row(8, PROMPT, [1, 2]))))) == [8]
        play(story)

    def test_a_sequence_that_is_sent_again_goes_on_as_if_nothing_had_happened(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            said = rows_of(await shard.send(prefill(1, Row(7, SHORT, [0]))))[7]
            for _ in range(6):
                said += rows_of(await shard.send(decode(1)))[7]
            await shard.reset()
            again = Row(9, SHORT + said[:4], [5], prompt=len(SHORT))
            assert rows_of(await shard.send(prefill(2, again)))[9] == [said[4]]
            assert rows_of(await shard.send(decode(2)))[9] == [said[5]]
        play(story)

    def test_filter_forgets_the_others_and_frees_their_blocks(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1]), Row(9, SHORT, [2])))
            await shard.send(filtered(1, 9, 7))
            await shard.send(prefill(2, Row(8, SHORT, [1])))
            assert list(rows_of(await shard.send(decode(1)))) == [7, 9]
        play(story)

    def test_an_empty_keep_forgets_the_batch(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            await shard.send(filtered(1))
            assert await shard.code(decode(1)) == Code.FAILED_PRECONDITION
        play(story)

    def test_concat_joins_batches_whatever_their_progress(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            await shard.send(decode(1))
            await shard.send(prefill(2, Row(8, SHORT, [1])))
            await shard.send(prefill(3, Row(9, PROMPT, [2, 3]), run=[(9, 0, 16)]))
            await shard.send(concat(1, 2, 3))
            answer = await shard.send(prefill(1, run=[(9, 16, len(PROMPT) - 16)], alongside=True))
            assert list(answer.sequences) == [7, 8, 9]
            assert await shard.code(decode(2)) == Code.FAILED_PRECONDITION
        play(story)

    def test_keep_and_join_may_ride_on_a_decode(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1])))
            await shard.send(prefill(2, Row(9, SHORT, [2])))
            assert list(rows_of(await shard.send(decode(1, keep=keep(8), join=join(2))))) == [8, 9]
        play(story)

    def test_what_keep_frees_may_be_granted_and_taken_in_the_same_message(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            full = list(range(16))
            await shard.send(prefill(1, Row(7, full, [0]), Row(8, SHORT, [1, 2])))
            answer = await shard.send(prefill(1, Row(9, SHORT, [2]), keep=keep(7), grants=grants(s7=[1]),
                                              alongside=True))
            assert list(rows_of(answer)) == [7, 9]
        play(story)

    def test_a_batch_that_was_forgotten_may_begin_anew_in_the_same_message(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, SHORT, [0])))
            assert list(rows_of(await shard.send(prefill(1, Row(8, SHORT, [0]), keep=keep())))) == [8]
        play(story)

    def test_a_step_that_would_write_beyond_the_blocks_is_refused(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, list(range(16)), [0])))
            assert await shard.code(decode(1)) == Code.FAILED_PRECONDITION
        play(story)

    def test_granted_blocks_are_written_when_the_others_are_full(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, list(range(16)), [0])))
            await shard.send(decode(1, grants=grants(s7=[4])))
            assert shard.worker.ledger.sequences[7].blocks == [0, 4]
            assert await shard.code(prefill(2, Row(8, SHORT, [4]))) == Code.FAILED_PRECONDITION
        play(story)

    def test_a_cached_prefix_is_shared_and_not_run_again(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            first = await shard.send(prefill(1, Row(7, PROMPT, [0, 1])))
            other = await shard.send(prefill(1, Row(8, PROMPT, [0, 2], cached=16), Row(9, PROMPT, [0, 3], cached=16)))
            assert rows_of(other)[8] == rows_of(other)[9] == rows_of(first)[7]
            await shard.send(filtered(1, 9))
            assert list(rows_of(await shard.send(decode(1)))) == [9]
        play(story)

    def test_a_cached_prefix_stays_when_nobody_holds_it(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            await shard.send(prefill(1, Row(7, PROMPT, [0, 1])))
            await shard.send(filtered(1))
            assert await shard.code(prefill(1, Row(8, PROMPT, [0, 2], cached=16))) == Code.OK
        play(story)

    def test_logprobs_of_a_prompt_come_with_its_chunks(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            row = Row(7, PROMPT, [0, 1], prompt_logprobs=True)
            begun = await shard.send(prefill(1, row, run=[(7, 0, 10)]))
            ended = await shard.send(prefill(1, run=[(7, 10, len(PROMPT) - 10)]))
            assert [*begun.prompt_sequences, *ended.prompt_sequences] == [7, 7]
            assert [*begun.prompt_starts, *ended.prompt_starts] == [1, 11]
            counts = [*begun.num_prompt_logprobs, *ended.num_prompt_logprobs]
            assert counts == [len(begun.prompt_logprobs), len(ended.prompt_logprobs)] == [10, len(PROMPT) - 11]
        play(story)

    def test_the_best_candidates_come_best_first_for_whom_they_were_wanted(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            answer = await shard.send(prefill(1, Row(7, SHORT, [0]), Row(8, SHORT, [1], top=3)))
            assert list(answer.num_top_tokens) == [0, 3]
            assert len(answer.top_tokens) == 3
            assert list(answer.top_logprobs) == sorted(answer.top_logprobs, reverse=True)
        play(story)


    def test_defaults_stand_for_empty_columns(self, play: Any) -> None:
        async def story(shard: Peer) -> None:
            plain = pb.Sequences(ids=[9], num_tokens=[3], tokens=SHORT, num_blocks=[1], blocks=[9])
            short = await shard.send(pb.PrefillRequest(batch=1, sequences=plain, chunks=pb.Chunks(
                sequences=[9], lengths=[3])))
            long = await shard.send(pb.PrefillRequest(batch=2, sequences=sequences(Row(10, SHORT, [10])),
                                                      chunks=chunks((10, 0, 3))))
            assert rows_of(short)[9] == rows_of(long)[10]
        play(story)

    @pytest.mark.parametrize("wrong", [
        {"block_size": 0}, {"block_size": 24}, {"max_prefill_tokens": 0}, {"max_batch_size": 0},
        {"max_total_tokens": 10**6}, {"max_cache_tokens": 8}], ids=str)
    def test_warmup_refuses_limits_that_make_no_sense(self, play: Any, wrong: dict[str, int]) -> None:
        async def story(shard: Peer) -> None:
            limits = pb.WarmupRequest()
            limits.CopyFrom(WARMUP)
            for name, value in wrong.items():
                setattr(limits, name, value)
            assert await code_of(shard.stub.Warmup(limits)) == Code.INVALID_ARGUMENT
            assert await code_of(shard.stub.Warmup(WARMUP)) == Code.OK
        play(story, fresh=True)

    # -- two ranks: ranks that have applied the same messages hold the same state

    @staticmethod
    def script() -> list[Any]:
        return [prefill(1, Row(7, PROMPT, [0, 1]), Row(8, PROMPT, [2, 3]), run=[(7, 0, 16), (8, 0, 23)]),
                prefill(2, Row(9, SHORT, [4])), concat(1, 2),
                prefill(1, run=[(7, 16, 7)], alongside=True), decode(1), filtered(1, 7, 9),
                decode(1), prefill(1, Row(10, PROMPT, [0, 3], cached=16), keep=keep(7)), decode(1)]

    async def send_all(self, shard: Peer, arrival: list[int], script: list[Any] | None = None) -> list[Code]:
        """Send all messages in this order of arrival; return the status codes by order.

        Of several copies of a message only the first to arrive counts; the others get ALREADY_EXISTS.
        """
        script, codes = script or self.script(), {}
        calls = [(i, shard.send(script[i], order=i + 1)) for i in arrival]
        for i, call in calls:
            code = await code_of(call)
            if codes.get(i, Code.ALREADY_EXISTS) == Code.ALREADY_EXISTS:
                codes[i] = code
        return [codes[i] for i in sorted(codes)]

    @pytest.mark.parametrize("arrival", [
        [0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 7, 6, 8],
        [4, 8, 0, 6, 2, 7, 1, 5, 3]])
    def test_ranks_agree_when_messages_come_out_of_order(self, play: Any, arrival: list[int]) -> None:
        async def story(one: Peer, other: Peer) -> None:
            codes = await asyncio.gather(self.send_all(one, list(range(9))), self.send_all(other, arrival))
            assert codes[0] == codes[1] == [Code.OK] * 9
            assert one.state() == other.state()
        play(story, ranks=2)

    def test_ranks_agree_when_messages_come_twice(self, play: Any) -> None:
        async def story(one: Peer, other: Peer) -> None:
            twice = [i for i in range(9) for _ in range(2)]
            codes = await asyncio.gather(self.send_all(one, list(range(9))), self.send_all(other, twice))
            assert codes[0] == codes[1] == [Code.OK] * 9
            assert one.state() == other.state()
        play(story, ranks=2)

    @pytest.mark.parametrize("wrong", range(9))
    def test_ranks_agree_when_a_message_is_refused(self, play: Any, wrong: int) -> None:
        async def story(one: Peer, other: Peer) -> None:
            script = [*self.script()[:wrong], decode(99), *self.script()[wrong + 1:]]
            codes = await asyncio.gather(self.send_all(one, list(range(9)), script),
                                         self.send_all(other, list(reversed(range(9))), script))
            assert codes[0] == codes[1] == [Code.OK] * wrong + [Code.FAILED_PRECONDITION] * (9 - wrong)
            assert one.state() == other.state()
        play(story, ranks=2)

    @pytest.mark.parametrize("lost", range(8))
    def test_ranks_agree_up_to_a_missing_message_and_after_a_reset(self, play_simulated: Any, lost: int) -> None:
        async def story(one: Peer, other: Peer) -> None:
            await self.send_all(one, list(range(lost)))
            before = one.state()
            codes = await self.send_all(other, [i for i in range(9) if i != lost])
            assert codes == [Code.OK] * lost + [Code.FAILED_PRECONDITION] * (8 - lost)
            assert other.state() == before
            await asyncio.gather(one.reset(), other.reset())
            await asyncio.gather(*[self.send_all(rank, list(range(9))) for rank in (one, other)])
            assert one.state() == other.state()
        play_simulated(story, ranks=2, gap_timeout=0.5)

    def test_only_rank_0_answers_with_tokens(self, play: Any) -> None:
        async def story(one: Peer, other: Peer) -> None:
            calls = [rank.send(prefill(1, Row(7, SHORT, [0], top=2))) for rank in (one, other)]
            first, second = await asyncio.gather(*calls)
            assert list(first.sequences) == [7]
            assert (second.epoch, second.order) == (1, 1)
            assert not any([second.sequences, second.tokens, second.top_tokens, second.failed])
        play(story, ranks=2)
