"""The contract between router and shards, rule by rule, against every kind of worker over real gRPC."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations
from operator import ge
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint, make_tiny_encoder
from support.shards.protocol_messages import (
    WARMUP_REQUEST,
    SequenceRow,
    get_embeddings,
    get_labels_by_text,
    get_tokens_by_sequence,
    make_chunks,
    make_concat,
    make_decode,
    make_embed,
    make_filter,
    make_grants,
    make_join,
    make_keep,
    make_prefill,
    make_sequences,
)
from support.shards.shard_client import ShardClient, await_status_code
from support.shards.shard_client import play_scenario as play_with

from shard.errors import StepOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker
from shard.workers.decoder import DecoderWorker
from shard.workers.encoder import EncoderWorker

StatusCode = grpc.StatusCode
WORKER_FACTORIES = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "model": lambda model, config: DecoderWorker(replace(config, model=str(model), threads=1)),
}
EMBEDDING_WORKER_FACTORIES = {  # workers that compute embeddings
    "simulated": lambda _, config: SimulatedWorker(config),
    "decoder": lambda folder, config: DecoderWorker(
        replace(config, model=str(make_tiny_checkpoint(folder, "llama")), threads=1)),
    "encoder": lambda folder, config: EncoderWorker(
        replace(config, model=str(make_tiny_encoder(folder, "bert", max_position_embeddings=256)), threads=1)),
}
LABELLING_WORKER_FACTORIES = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "encoder": lambda folder, config: EncoderWorker(
        replace(config, model=str(make_tiny_encoder(folder, "bert", labels=True, max_position_embeddings=256)),
                threads=1)),
}
PROMPT = list(b"weave me something nice")
SHORT_PROMPT = list(b"abc")


@pytest.fixture(params=WORKER_FACTORIES)
def play_scenario(request: pytest.FixtureRequest, tmp_path: Path, model_folder: Path) -> Callable[..., None]:
    return partial(play_with, partial(WORKER_FACTORIES[request.param], model_folder), tmp_path)


@pytest.fixture(params=EMBEDDING_WORKER_FACTORIES)
def play_embedding_scenario(request: pytest.FixtureRequest, tmp_path: Path,
                            tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Return `play_scenario` for each kind of worker that computes embeddings."""
    return partial(play_with, partial(EMBEDDING_WORKER_FACTORIES[request.param], tmp_path_factory.getbasetemp()),
                   tmp_path)


@pytest.fixture(params=LABELLING_WORKER_FACTORIES)
def play_labelling_scenario(request: pytest.FixtureRequest, tmp_path: Path,
                            tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Return `play_scenario` for each kind of worker that computes labels and no embeddings."""
    make_worker = partial(LABELLING_WORKER_FACTORIES[request.param], tmp_path_factory.getbasetemp())
    return partial(play_with, make_worker, tmp_path, num_labels=5, embedding_width=0, generation=False)


@pytest.fixture
def play_simulated_scenario(tmp_path: Path) -> Callable[..., None]:
    """Return `play_scenario` for the simulated worker, for features that no worker with a real model has yet."""
    return partial(play_with, SimulatedWorker, tmp_path)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", max_position_embeddings=256)


class TestContract:
    def test_early_message_waits_for_its_predecessors(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            second = await shard.send_and_wait_for_receipt(make_decode(1), order=2)
            first = await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), order=1)
            assert first.order == 1
            assert (await second).order == 2
        play_scenario(scenario)

    @pytest.mark.parametrize("arrival", list(permutations(range(3))))
    def test_arrival_order_of_messages_does_not_matter(self, play_scenario: Any, arrival: tuple[int, ...]) -> None:
        async def scenario(shard: ShardClient) -> None:
            messages = [make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]), SequenceRow(8, PROMPT, [1, 2])),
                        make_filter(1, 8), make_decode(1)]
            calls = [shard.send(messages[i], order=i + 1) for i in arrival]
            answers = await asyncio.gather(*calls)
            assert sorted(answer.order for answer in answers) == [1, 2, 3]
            assert list(answers[arrival.index(2)].sequences) == [8]
        play_scenario(scenario)

    def test_duplicate_message_is_rejected_without_ending_the_epoch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            state = shard.describe_state()
            assert await shard.get_status_code(make_filter(1), order=1) == StatusCode.ALREADY_EXISTS
            assert shard.describe_state() == state
            assert await shard.get_status_code(make_decode(1)) == StatusCode.OK
        play_scenario(scenario)

    def test_duplicate_of_a_held_back_message_is_rejected(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            early = await shard.send_and_wait_for_receipt(make_decode(1), order=2)
            assert await shard.get_status_code(make_decode(1), order=2) == StatusCode.ALREADY_EXISTS
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), order=1)
            assert (await early).order == 2
        play_scenario(scenario)

    def test_rejected_message_uses_its_order_and_ends_the_epoch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            state = shard.describe_state()
            assert await shard.get_status_code(make_decode(2)) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_decode(1), order=2) == StatusCode.ALREADY_EXISTS
            assert await shard.get_status_code(make_decode(1), order=3) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_decode(1), order=9) == StatusCode.FAILED_PRECONDITION
            assert shard.describe_state() == state
        play_scenario(scenario)

    def test_malformed_message_ends_the_epoch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert await shard.get_status_code(pb.FilterRequest(batch=1)) == StatusCode.INVALID_ARGUMENT
            assert (await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
                    == StatusCode.FAILED_PRECONDITION)
        play_scenario(scenario)

    def test_held_back_messages_are_rejected_when_the_epoch_ends(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            early = await shard.send_and_wait_for_receipt(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), order=3)
            assert await shard.get_status_code(make_decode(1), order=1) == StatusCode.FAILED_PRECONDITION
            assert await await_status_code(early) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])),
                                               order=3) == StatusCode.ALREADY_EXISTS
        play_scenario(scenario)

    def test_orders_start_at_one(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert await shard.get_status_code(make_decode(1), order=0) == StatusCode.INVALID_ARGUMENT
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])),
                                               order=1) == StatusCode.OK
        play_scenario(scenario)

    def test_missing_message_ends_the_epoch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            assert await shard.get_status_code(make_decode(1), order=3) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_decode(1), order=2) == StatusCode.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))) == StatusCode.OK
        play_scenario(scenario, gap_timeout=0.05)

    @pytest.mark.parametrize(("error", "code"), [(RuntimeError("no"), StatusCode.INTERNAL),
                                                 (StepOutOfMemory("no memory"), StatusCode.RESOURCE_EXHAUSTED)],
                             ids=["failed", "full"])
    def test_failed_step_returns_its_error_and_ends_the_epoch(self, play_scenario: Any, monkeypatch: pytest.MonkeyPatch,
                                                              error: Exception, code: StatusCode) -> None:
        def raise_error(request: Any) -> None:
            raise error

        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            with monkeypatch.context() as patch:
                patch.setattr(shard.worker, "decode", raise_error)
                assert await shard.get_status_code(make_decode(1)) == code
            assert await shard.get_status_code(make_decode(1)) == StatusCode.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))) == StatusCode.OK
        play_scenario(scenario)

    def test_message_is_applied_even_if_the_caller_cancels(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            early = await shard.send_and_wait_for_receipt(make_decode(1), order=2)
            early.cancel()
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), order=1)
            assert (await shard.send(make_decode(1), order=3)).order == 3
            assert shard.worker.shard_state.sequences[7].num_computed_tokens == len(SHORT_PROMPT) + 2
        play_scenario(scenario)

    # -- epochs

    def test_nothing_is_applied_before_the_first_reset(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.stub.Warmup(WARMUP_REQUEST)
            assert (await shard.stub.Info(pb.InfoRequest())).epoch == 0
            assert (await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
                    == StatusCode.FAILED_PRECONDITION)
        play_scenario(scenario, fresh=True)

    def test_no_step_runs_before_warmup(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.reset()
            assert not (await shard.stub.Info(pb.InfoRequest())).HasField("warmup")
            assert (await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
                    == StatusCode.FAILED_PRECONDITION)
        play_scenario(scenario, fresh=True)

    @pytest.mark.parametrize("epoch", [0, 2, 4])
    def test_message_of_another_epoch_is_rejected_without_effect(self, play_scenario: Any, epoch: int) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.reset()
            await shard.reset()
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            state = shard.describe_state()
            assert await shard.get_status_code(make_filter(1), order=2, epoch=epoch) == StatusCode.FAILED_PRECONDITION
            assert shard.describe_state() == state
            assert await shard.get_status_code(make_decode(1)) == StatusCode.OK
        play_scenario(scenario)

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_reset_requires_a_higher_epoch(self, play_scenario: Any, epoch: int) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            assert await await_status_code(
                shard.stub.Reset(pb.ResetRequest(epoch=epoch))) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_decode(1)) == StatusCode.OK
        play_scenario(scenario)

    def test_reset_drops_batches_sequences_and_cached_blocks(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1])))
            await shard.reset()
            shard_state = shard.worker.shard_state
            assert not shard_state.batches
            assert not shard_state.sequences
            assert not any(shard_state.block_usage.num_holders)
            cached = make_prefill(1, SequenceRow(7, PROMPT, [0, 1], num_cached=16))
            assert await shard.get_status_code(cached) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_reset_rejects_held_back_messages(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            early = await shard.send_and_wait_for_receipt(make_decode(1), order=2)
            await shard.reset()
            assert await await_status_code(early) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_info_reports_epoch_and_warmup_results(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            info = await shard.stub.Info(pb.InfoRequest())
            assert info.epoch == 1
            assert info.warmup.block_size == 16
            assert 0 < info.warmup.num_blocks <= 32
            columns = [info.warmup.rows, info.warmup.chunk_tokens, info.warmup.context, info.warmup.seconds]
            assert len({len(column) for column in columns}) == 1
        play_scenario(scenario)

    def test_second_warmup_is_rejected(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert await await_status_code(shard.stub.Warmup(WARMUP_REQUEST)) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))) == StatusCode.OK
        play_scenario(scenario)

    # -- adapters and grammars; more in test_adapter_contract.py

    def test_invalid_loads_and_unloads_do_not_end_the_epoch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            load, unload = shard.stub.Load, shard.stub.Unload
            assert (await await_status_code(load(pb.LoadRequest(epoch=1, kind=pb.KIND_ADAPTER)))
                    == StatusCode.INVALID_ARGUMENT)
            assert await await_status_code(load(pb.LoadRequest(epoch=1, id=5))) == StatusCode.INVALID_ARGUMENT
            assert (await await_status_code(load(pb.LoadRequest(epoch=2, kind=1, id=5)))
                    == StatusCode.FAILED_PRECONDITION)
            assert (await await_status_code(unload(pb.UnloadRequest(epoch=1, kind=1, id=5)))
                    == StatusCode.FAILED_PRECONDITION)
            assert (await await_status_code(unload(pb.UnloadRequest(epoch=0, kind=1, id=5)))
                    == StatusCode.FAILED_PRECONDITION)
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))) == StatusCode.OK
        play_scenario(scenario)

    # -- embeddings and labels

    def test_embedding_of_a_text_does_not_depend_on_other_texts(self, play_embedding_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert (await shard.stub.Info(pb.InfoRequest())).embeddings
            both = await shard.send(make_embed(PROMPT, SHORT_PROMPT))
            assert (both.epoch, both.order, both.failed) == (1, 1, [])
            assert both.forward_seconds > 0
            first, second = get_embeddings(both)
            assert len(first) == len(second) == both.width > 0
            assert first != second
            assert get_embeddings(await shard.send(make_embed(SHORT_PROMPT, PROMPT))) == [second, first]
            assert get_embeddings(await shard.send(make_embed(SHORT_PROMPT))) == [second]
        play_embedding_scenario(scenario)

    def test_every_token_gets_a_label_and_a_score(self, play_labelling_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            info = await shard.stub.Info(pb.InfoRequest())
            assert (info.classification, info.embeddings, info.generation) == (True, False, False)
            assert len(set(info.labels)) == 5
            answer = await shard.send(make_embed(PROMPT, SHORT_PROMPT, wanted=pb.LABELS))
            first, second = get_labels_by_text(answer)
            assert (len(first), len(second), len(answer.failed)) == (len(PROMPT), len(SHORT_PROMPT), 0)
            assert all(label < 5 and 0 < score <= 1 for label, score in first + second)
            assert get_labels_by_text(await shard.send(make_embed(SHORT_PROMPT, wanted=pb.LABELS))) == [second]
        play_labelling_scenario(scenario)

    def test_pooling_steps_keep_order_with_other_steps_and_leave_no_state(self, play_scenario: Any) -> None:
        """Pooling steps leave no state behind and take no part in batches."""
        async def scenario(shard: ShardClient) -> None:
            second = await shard.send_and_wait_for_receipt(make_embed(SHORT_PROMPT), order=2)
            alone = await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), order=1)
            state = shard.describe_state()
            assert (await second).order == 2
            assert shard.describe_state() == state
            repeated = make_prefill(2, SequenceRow(8, SHORT_PROMPT, [1]))
            assert get_tokens_by_sequence(await shard.send(repeated, order=3))[8] == get_tokens_by_sequence(alone)[7]
            assert list((await shard.send(make_decode(1), order=4)).sequences) == [7]
        play_scenario(scenario)

    def test_pooling_requests_work_over_the_step_stream(self, play_embedding_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            expected = await shard.send(make_embed(PROMPT, SHORT_PROMPT))
            step_stream = shard.stub.Steps()
            await step_stream.write(pb.StepMessage(embed=shard.set_epoch_and_order(make_embed(PROMPT, SHORT_PROMPT))))
            outcome = await step_stream.read()
            assert outcome.WhichOneof("outcome") == "embed"
            assert (outcome.embed.order, outcome.embed.values) == (2, expected.values)
            await step_stream.write(pb.StepMessage(embed=shard.set_epoch_and_order(make_embed())))
            assert (await step_stream.read()).trouble.code == StatusCode.INVALID_ARGUMENT.value[0]
            await step_stream.done_writing()
            assert await step_stream.read() == grpc.aio.EOF
        play_embedding_scenario(scenario)

    @pytest.mark.parametrize("message", [
        make_embed(), make_embed(SHORT_PROMPT, []), make_embed(SHORT_PROMPT, [9999]),
        make_embed(SHORT_PROMPT, adapters=[1, 2]), make_embed([5] * 20_000),
        make_embed(SHORT_PROMPT, wanted=pb.WANTED_UNSPECIFIED), make_embed(SHORT_PROMPT, wanted=7),
        pb.EmbedRequest(wanted=pb.VECTORS, num_tokens=[4], tokens=SHORT_PROMPT)],
                             ids=["none", "empty", "outside the vocabulary", "two adapters", "too long", "unspecified",
                                  "unknown", "ragged"])
    def test_invalid_pooling_requests_are_malformed(self, play_embedding_scenario: Any, message: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert await shard.get_status_code(
                pb.EmbedRequest.FromString(message.SerializeToString())) == StatusCode.INVALID_ARGUMENT
            assert await shard.get_status_code(make_embed(SHORT_PROMPT)) == StatusCode.FAILED_PRECONDITION
        play_embedding_scenario(scenario)

    @pytest.mark.parametrize("message", [make_embed(SHORT_PROMPT, wanted=pb.LABELS),
                                         make_embed(SHORT_PROMPT, adapters=[5]), make_embed(*[[5] * 100] * 3)],
                             ids=["labels", "adapter", "too many"])
    def test_unsupported_pooling_requests_are_rejected(self, play_embedding_scenario: Any, message: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert await shard.get_status_code(
                pb.EmbedRequest.FromString(message.SerializeToString())) == StatusCode.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.get_status_code(make_embed(SHORT_PROMPT)) == StatusCode.OK
        play_embedding_scenario(scenario)

    def test_pooling_requests_need_warmup(self, play_embedding_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.reset()
            assert await shard.get_status_code(make_embed(SHORT_PROMPT)) == StatusCode.FAILED_PRECONDITION
        play_embedding_scenario(scenario, fresh=True)

    @pytest.mark.parametrize("message", [make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])), make_decode(1),
                                         make_filter(1), make_concat(1, 2), make_embed(SHORT_PROMPT)],
                             ids=["prefill", "decode", "filter", "concat", "vectors"])
    def test_labelling_worker_rejects_all_other_requests(self, play_labelling_scenario: Any, message: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            same = type(message).FromString(message.SerializeToString())
            assert await shard.get_status_code(same) == StatusCode.FAILED_PRECONDITION
        play_labelling_scenario(scenario)

    def test_only_rank_0_returns_embeddings(self, play_simulated_scenario: Any) -> None:
        async def scenario(*shards: ShardClient) -> None:
            first, second = await asyncio.gather(*(shard.send(make_embed(SHORT_PROMPT)) for shard in shards))
            assert (len(first.values), len(second.values)) == (16, 0)
            assert (second.epoch, second.order) == (1, 1)
        play_simulated_scenario(scenario, ranks=2)

    # -- steps

    def test_prefill_returns_a_token_only_when_the_prompt_is_complete(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            begun = await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1]), chunk_rows=[(7, 0, 16)]))
            assert not begun.sequences
            complete = await shard.send(make_prefill(1, chunk_rows=[(7, 16, len(PROMPT) - 16)]))
            assert [len(tokens) for tokens in get_tokens_by_sequence(complete).values()] == [1]
            assert complete.forward_seconds > 0
        play_scenario(scenario)

    def test_chunked_prefill_gives_the_same_result(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            whole = await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1])))
            await shard.send(make_prefill(2, SequenceRow(8, PROMPT, [2, 3]), chunk_rows=[(8, 0, 5)]))
            await shard.send(make_prefill(2, chunk_rows=[(8, 5, 12)]))
            parts = await shard.send(make_prefill(2, chunk_rows=[(8, 17, len(PROMPT) - 17)]))
            assert get_tokens_by_sequence(whole)[7] == get_tokens_by_sequence(parts)[8]
            assert whole.logprobs == parts.logprobs
        play_scenario(scenario)

    def test_decode_generates_one_token_for_every_ready_sequence(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            rows = (SequenceRow(7, SHORT_PROMPT, [0]), SequenceRow(8, SHORT_PROMPT, [1], sampling_key=1),
                    SequenceRow(9, PROMPT, [2, 3]))
            await shard.send(make_prefill(1, *rows, chunk_rows=[(7, 0, 3), (8, 0, 3), (9, 0, 16)]))
            answer = await shard.send(make_decode(1))
            assert list(answer.sequences) == [7, 8]
            assert len(answer.logprobs) == len(answer.tokens)
        play_scenario(scenario)

    def test_prefill_alongside_decodes_sequences_that_were_ready(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            answer = await shard.send(make_prefill(1, SequenceRow(8, PROMPT, [1, 2]), alongside=True))
            assert {i: len(tokens) for i, tokens in get_tokens_by_sequence(answer).items()} == {7: 1, 8: 1}
            shard_state = shard.worker.shard_state
            assert [s.num_computed_tokens
                    for s in shard_state.sequences.values()] == [len(SHORT_PROMPT) + 1, len(PROMPT)]
        play_scenario(scenario)

    def test_prefill_without_alongside_decodes_nothing(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            assert list(
                get_tokens_by_sequence(await shard.send(make_prefill(1, SequenceRow(8, PROMPT, [1, 2]))))) == [8]
        play_scenario(scenario)

    def test_resent_sequence_continues_with_the_same_tokens(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            tokens = get_tokens_by_sequence(await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))))[7]
            for _ in range(6):
                tokens += get_tokens_by_sequence(await shard.send(make_decode(1)))[7]
            await shard.reset()
            resent = SequenceRow(9, SHORT_PROMPT + tokens[:4], [5], num_prompt_tokens=len(SHORT_PROMPT))
            assert get_tokens_by_sequence(await shard.send(make_prefill(2, resent)))[9] == [tokens[4]]
            assert get_tokens_by_sequence(await shard.send(make_decode(2)))[9] == [tokens[5]]
        play_scenario(scenario)

    def test_filter_drops_other_sequences_and_frees_their_blocks(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]), SequenceRow(8, SHORT_PROMPT, [1]),
                                          SequenceRow(9, SHORT_PROMPT, [2])))
            await shard.send(make_filter(1, 9, 7))
            await shard.send(make_prefill(2, SequenceRow(8, SHORT_PROMPT, [1])))
            assert list(get_tokens_by_sequence(await shard.send(make_decode(1)))) == [7, 9]
        play_scenario(scenario)

    def test_empty_filter_drops_the_batch(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            await shard.send(make_filter(1))
            assert await shard.get_status_code(make_decode(1)) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_concat_joins_batches_of_any_progress(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            await shard.send(make_decode(1))
            await shard.send(make_prefill(2, SequenceRow(8, SHORT_PROMPT, [1])))
            await shard.send(make_prefill(3, SequenceRow(9, PROMPT, [2, 3]), chunk_rows=[(9, 0, 16)]))
            await shard.send(make_concat(1, 2, 3))
            answer = await shard.send(make_prefill(1, chunk_rows=[(9, 16, len(PROMPT) - 16)], alongside=True))
            assert list(answer.sequences) == [7, 8, 9]
            assert await shard.get_status_code(make_decode(2)) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_decode_can_include_keep_and_join(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]), SequenceRow(8, SHORT_PROMPT, [1])))
            await shard.send(make_prefill(2, SequenceRow(9, SHORT_PROMPT, [2])))
            assert (list(get_tokens_by_sequence(await shard.send(make_decode(1, keep=make_keep(8), join=make_join(2)))))
                    == [8, 9])
        play_scenario(scenario)

    def test_blocks_freed_by_keep_can_be_granted_in_the_same_message(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            full = list(range(16))
            await shard.send(make_prefill(1, SequenceRow(7, full, [0]), SequenceRow(8, SHORT_PROMPT, [1, 2])))
            answer = await shard.send(make_prefill(1, SequenceRow(9, SHORT_PROMPT, [2]), keep=make_keep(7),
                                                   grants=make_grants(s7=[1]), alongside=True))
            assert list(get_tokens_by_sequence(answer)) == [7, 9]
        play_scenario(scenario)

    def test_batch_emptied_by_keep_can_be_refilled_in_the_same_message(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0])))
            assert list(get_tokens_by_sequence(await shard.send(make_prefill(1, SequenceRow(8, SHORT_PROMPT, [0]),
                                                                             keep=make_keep())))) == [8]
        play_scenario(scenario)

    def test_step_beyond_the_allocated_blocks_is_rejected(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, list(range(16)), [0])))
            assert await shard.get_status_code(make_decode(1)) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_granted_blocks_are_used_when_the_others_are_full(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, list(range(16)), [0])))
            await shard.send(make_decode(1, grants=make_grants(s7=[4])))
            assert shard.worker.shard_state.sequences[7].blocks == [0, 4]
            assert (await shard.get_status_code(make_prefill(2, SequenceRow(8, SHORT_PROMPT, [4])))
                    == StatusCode.FAILED_PRECONDITION)
        play_scenario(scenario)

    def test_cached_prefix_is_shared_and_not_recomputed(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            first = await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1])))
            cached = await shard.send(make_prefill(1, SequenceRow(8, PROMPT, [0, 2], num_cached=16),
                                                   SequenceRow(9, PROMPT, [0, 3], num_cached=16)))
            assert (get_tokens_by_sequence(cached)[8] == get_tokens_by_sequence(cached)[9]
                    == get_tokens_by_sequence(first)[7])
            await shard.send(make_filter(1, 9))
            assert list(get_tokens_by_sequence(await shard.send(make_decode(1)))) == [9]
        play_scenario(scenario)

    def test_cached_prefix_survives_its_last_user(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1])))
            await shard.send(make_filter(1))
            assert (await shard.get_status_code(make_prefill(1, SequenceRow(8, PROMPT, [0, 2], num_cached=16)))
                    == StatusCode.OK)
        play_scenario(scenario)

    def test_prompt_logprobs_are_returned_with_each_chunk(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            row = SequenceRow(7, PROMPT, [0, 1], prompt_logprobs=True, num_prompt_top_tokens=2)
            begun = await shard.send(make_prefill(1, row, chunk_rows=[(7, 0, 10)]))
            ended = await shard.send(make_prefill(1, chunk_rows=[(7, 10, len(PROMPT) - 10)]))
            assert [*begun.prompt_sequences, *ended.prompt_sequences] == [7, 7]
            assert [*begun.prompt_starts, *ended.prompt_starts] == [1, 11]
            counts = [*begun.num_prompt_logprobs, *ended.num_prompt_logprobs]
            assert counts == [len(begun.prompt_logprobs), len(ended.prompt_logprobs)] == [10, len(PROMPT) - 11]
            for answer in (begun, ended):
                assert list(answer.num_prompt_top_tokens) == [2]
                assert len(answer.prompt_top_tokens) == len(answer.prompt_top_logprobs) == 2 * len(
                    answer.prompt_logprobs)
                best, second = answer.prompt_top_logprobs[::2], answer.prompt_top_logprobs[1::2]
                assert all(map(ge, best, second))
                assert all(map(ge, best, answer.prompt_logprobs))
            assert await shard.get_status_code(make_prefill(2, SequenceRow(
                8, SHORT_PROMPT, [2], num_prompt_top_tokens=2))) == StatusCode.INVALID_ARGUMENT
        play_scenario(scenario)

    def test_top_tokens_are_returned_best_first_where_requested(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            answer = await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]),
                                                   SequenceRow(8, SHORT_PROMPT, [1], top_n_tokens=3)))
            assert list(answer.num_top_tokens) == [0, 3]
            assert len(answer.top_tokens) == 3
            assert list(answer.top_logprobs) == sorted(answer.top_logprobs, reverse=True)
        play_scenario(scenario)

    def test_empty_columns_mean_default_values(self, play_scenario: Any) -> None:
        async def scenario(shard: ShardClient) -> None:
            plain = pb.Sequences(ids=[9], num_tokens=[3], tokens=SHORT_PROMPT, num_blocks=[1], blocks=[9])
            short = await shard.send(pb.PrefillRequest(batch=1, sequences=plain, chunks=pb.Chunks(
                sequences=[9], lengths=[3])))
            long = await shard.send(pb.PrefillRequest(batch=2,
                                                      sequences=make_sequences(SequenceRow(10, SHORT_PROMPT, [10])),
                                                      chunks=make_chunks((10, 0, 3))))
            assert get_tokens_by_sequence(short)[9] == get_tokens_by_sequence(long)[10]
        play_scenario(scenario)

    @pytest.mark.parametrize("wrong", [
        {"block_size": 0}, {"block_size": 24}, {"max_prefill_tokens": 0}, {"max_batch_size": 0},
        {"max_total_tokens": 10**6}, {"max_cache_tokens": 8}], ids=str)
    def test_warmup_rejects_invalid_limits(self, play_scenario: Any, wrong: dict[str, int]) -> None:
        async def scenario(shard: ShardClient) -> None:
            limits = pb.WarmupRequest()
            limits.CopyFrom(WARMUP_REQUEST)
            for name, value in wrong.items():
                setattr(limits, name, value)
            assert await await_status_code(shard.stub.Warmup(limits)) == StatusCode.INVALID_ARGUMENT
            assert await await_status_code(shard.stub.Warmup(WARMUP_REQUEST)) == StatusCode.OK
        play_scenario(scenario, fresh=True)

    # -- two ranks: ranks that have applied the same messages hold the same state

    @staticmethod
    def make_messages() -> list[Any]:
        return [make_prefill(1, SequenceRow(7, PROMPT, [0, 1]), SequenceRow(8, PROMPT, [2, 3]),
                             chunk_rows=[(7, 0, 16), (8, 0, 23)]), make_prefill(2, SequenceRow(9, SHORT_PROMPT, [4])),
                make_concat(1, 2), make_prefill(1, chunk_rows=[(7, 16, 7)], alongside=True), make_decode(1),
                make_filter(1, 7, 9), make_decode(1),
                make_prefill(1, SequenceRow(10, PROMPT, [0, 3], num_cached=16), keep=make_keep(7)), make_decode(1)]

    async def send_all(self, shard: ShardClient, arrival: list[int],
                       messages: list[Any] | None = None) -> list[StatusCode]:
        """Send all messages in this order of arrival; return the status codes by order.

        Of several copies of a message only the first to arrive counts; the others get ALREADY_EXISTS.
        """
        messages, codes = messages or self.make_messages(), {}
        calls = [(i, shard.send(messages[i], order=i + 1)) for i in arrival]
        for i, call in calls:
            code = await await_status_code(call)
            if codes.get(i, StatusCode.ALREADY_EXISTS) == StatusCode.ALREADY_EXISTS:
                codes[i] = code
        return [codes[i] for i in sorted(codes)]

    @pytest.mark.parametrize("arrival", [
        [0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 7, 6, 8],
        [4, 8, 0, 6, 2, 7, 1, 5, 3]])
    def test_ranks_agree_when_messages_arrive_out_of_order(self, play_scenario: Any, arrival: list[int]) -> None:
        async def scenario(rank_0: ShardClient, rank_1: ShardClient) -> None:
            codes = await asyncio.gather(self.send_all(rank_0, list(range(9))), self.send_all(rank_1, arrival))
            assert codes[0] == codes[1] == [StatusCode.OK] * 9
            assert rank_0.describe_state() == rank_1.describe_state()
        play_scenario(scenario, ranks=2)

    def test_ranks_agree_when_messages_arrive_twice(self, play_scenario: Any) -> None:
        async def scenario(rank_0: ShardClient, rank_1: ShardClient) -> None:
            twice = [i for i in range(9) for _ in range(2)]
            codes = await asyncio.gather(self.send_all(rank_0, list(range(9))), self.send_all(rank_1, twice))
            assert codes[0] == codes[1] == [StatusCode.OK] * 9
            assert rank_0.describe_state() == rank_1.describe_state()
        play_scenario(scenario, ranks=2)

    @pytest.mark.parametrize("wrong", range(9))
    def test_ranks_agree_when_a_message_is_rejected(self, play_scenario: Any, wrong: int) -> None:
        async def scenario(rank_0: ShardClient, rank_1: ShardClient) -> None:
            messages = [*self.make_messages()[:wrong], make_decode(99), *self.make_messages()[wrong + 1:]]
            codes = await asyncio.gather(self.send_all(rank_0, list(range(9)), messages),
                                         self.send_all(rank_1, list(reversed(range(9))), messages))
            assert codes[0] == codes[1] == [StatusCode.OK] * wrong + [StatusCode.FAILED_PRECONDITION] * (9 - wrong)
            assert rank_0.describe_state() == rank_1.describe_state()
        play_scenario(scenario, ranks=2)

    @pytest.mark.parametrize("lost", range(8))
    def test_ranks_agree_up_to_a_missing_message_and_after_a_reset(self, play_simulated_scenario: Any,
                                                                   lost: int) -> None:
        async def scenario(rank_0: ShardClient, rank_1: ShardClient) -> None:
            await self.send_all(rank_0, list(range(lost)))
            before = rank_0.describe_state()
            codes = await self.send_all(rank_1, [i for i in range(9) if i != lost])
            assert codes == [StatusCode.OK] * lost + [StatusCode.FAILED_PRECONDITION] * (8 - lost)
            assert rank_1.describe_state() == before
            await asyncio.gather(rank_0.reset(), rank_1.reset())
            await asyncio.gather(*[self.send_all(rank, list(range(9))) for rank in (rank_0, rank_1)])
            assert rank_0.describe_state() == rank_1.describe_state()
        play_simulated_scenario(scenario, ranks=2, gap_timeout=0.5)

    def test_only_rank_0_returns_tokens(self, play_scenario: Any) -> None:
        async def scenario(rank_0: ShardClient, rank_1: ShardClient) -> None:
            calls = [rank.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], top_n_tokens=2)))
                     for rank in (rank_0, rank_1)]
            first, second = await asyncio.gather(*calls)
            assert list(first.sequences) == [7]
            assert (second.epoch, second.order) == (1, 1)
            assert not any([second.sequences, second.tokens, second.top_tokens, second.failed])
        play_scenario(scenario, ranks=2)
