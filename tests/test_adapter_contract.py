"""The rules on adapters in the contract between router and shards, against every kind of worker over real gRPC."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.checkpoints.peft_adapters import make_tiny_adapter
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.shards.protocol_messages import (
    SequenceRow,
    get_embeddings,
    get_tokens_by_sequence,
    make_decode,
    make_embed,
    make_filter,
    make_keep,
    make_prefill,
)
from support.shards.shard_client import ShardClient, await_status_code
from support.shards.shard_client import play_scenario as play_with

from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker
from shard.workers.decoder import DecoderWorker

StatusCode = grpc.StatusCode
WORKER_FACTORIES = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "model": lambda model, config: DecoderWorker(replace(config, model=str(model), threads=1, adaptable=True)),
}
PROMPT = list(b"weave me something nice")
SHORT_PROMPT = list(b"abc")


@pytest.fixture(params=WORKER_FACTORIES)
def play_scenario(request: pytest.FixtureRequest, tmp_path: Path, model_folder: Path) -> Callable[..., None]:
    return partial(play_with, partial(WORKER_FACTORIES[request.param], model_folder), tmp_path)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", max_position_embeddings=256)


@pytest.fixture(scope="module")
def full_adapter_folders(model_folder: Path) -> list[Path]:
    """Return two adapters that change every linear."""
    return [make_tiny_adapter(model_folder, seed=seed, r=4) for seed in (1, 2)]


@pytest.fixture(scope="module")
def q_proj_adapter_folder(model_folder: Path) -> Path:
    """Return an adapter of the same rank that changes only `q_proj`."""
    return make_tiny_adapter(model_folder, seed=3, r=4, target_modules=["q_proj"])


@pytest.fixture
def broken_adapter_folder(full_adapter_folders: list[Path], tmp_path: Path) -> Path:
    """Return an adapter with truncated weights; the simulated worker, which reads no files, rejects it by a fault."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in full_adapter_folders[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[:-1 if path.suffix == ".safetensors" else None])
    return folder


async def load_adapter(shard: ShardClient, adapter_id: int, folder: Path) -> pb.LoadAnswer:
    request = pb.LoadRequest(epoch=shard.epoch, kind=pb.KIND_ADAPTER, id=adapter_id, source=str(folder))
    answer: pb.LoadAnswer = await shard.stub.Load(request)
    return answer


async def unload_adapter(shard: ShardClient, adapter_id: int) -> None:
    await shard.stub.Unload(pb.UnloadRequest(epoch=shard.epoch, kind=pb.KIND_ADAPTER, id=adapter_id))


async def list_loaded_adapters(shard: ShardClient) -> list[int]:
    return list((await shard.stub.Info(pb.InfoRequest())).loaded_adapters)


async def generate_alone(shard: ShardClient, adapter_id: int, *, steps: int = 3) -> list[tuple[int, float]]:
    """Return tokens and logprobs of a sequence that runs alone with this adapter, in a new epoch."""
    await shard.reset()
    answers = [await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1], adapter_id=adapter_id)))]
    answers += [await shard.send(make_decode(1)) for _ in range(steps)]
    return [(answer.tokens[0], answer.logprobs[0]) for answer in answers]


class TestAdapterContract:
    def test_sequences_can_use_an_adapter_until_it_is_unloaded(self, play_scenario: Any,
                                                               q_proj_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            assert (await shard.stub.Info(pb.InfoRequest())).adapters
            await load_adapter(shard, 5, q_proj_adapter_folder)
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=5)))
            await shard.send(make_filter(1))
            await unload_adapter(shard, 5)
            assert await list_loaded_adapters(shard) == []
            assert await shard.get_status_code(
                make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=5))) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario)

    def test_reset_keeps_loaded_adapters(self, play_scenario: Any, full_adapter_folders: list[Path],
                                         q_proj_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 9, full_adapter_folders[0])
            await load_adapter(shard, 5, q_proj_adapter_folder)
            before = await generate_alone(shard, 5)
            await shard.reset()
            assert await list_loaded_adapters(shard) == [5, 9]
            assert await generate_alone(shard, 5) == before
        play_scenario(scenario)

    @pytest.mark.parametrize("number", [5, 2**64 - 1])
    def test_sequence_with_an_unloaded_adapter_is_rejected_without_effect(
            self, play_scenario: Any, q_proj_adapter_folder: Path, number: int) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 4, q_proj_adapter_folder)
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=4)))
            state = shard.describe_state()
            assert await shard.get_status_code(make_prefill(2, SequenceRow(8, SHORT_PROMPT, [1]), SequenceRow(
                9, SHORT_PROMPT, [2], adapter_id=number))) == (StatusCode.FAILED_PRECONDITION)
            assert shard.describe_state() == state
            assert await shard.get_status_code(make_decode(1)) == StatusCode.FAILED_PRECONDITION
            await shard.reset()
            assert (await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=4)))
                    == StatusCode.OK)
        play_scenario(scenario)

    def test_pooling_input_with_an_unloaded_adapter_is_rejected(self, play_scenario: Any,
                                                                q_proj_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 4, q_proj_adapter_folder)
            assert await shard.get_status_code(make_embed(SHORT_PROMPT, SHORT_PROMPT,
                                                          adapters=[4, 5])) == StatusCode.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.get_status_code(make_embed(SHORT_PROMPT, SHORT_PROMPT, adapters=[4, 0])) == StatusCode.OK
        play_scenario(scenario)

    def test_mixed_adapters_in_a_step_give_the_bits_of_each_alone(self, play_scenario: Any,
                                                                  full_adapter_folders: list[Path],
                                                                  q_proj_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            for number, folder in enumerate((*full_adapter_folders, q_proj_adapter_folder), 1):
                await load_adapter(shard, number, folder)
            alone = [await generate_alone(shard, adapter) for adapter in range(4)]
            assert len({tuple(output) for output in alone}) == 4
            await shard.reset()
            rows = [SequenceRow(10 + adapter, PROMPT, [2 * adapter, 2 * adapter + 1], adapter_id=adapter)
                    for adapter in range(4)]
            together = [await shard.send(make_prefill(1, *rows)), *[await shard.send(make_decode(1)) for _ in range(3)]]
            for index, output in enumerate(alone):
                assert [(answer.tokens[index], answer.logprobs[index]) for answer in together] == output
        play_scenario(scenario)

    def test_prefill_chunk_and_decodes_alongside_use_their_own_adapters(self, play_scenario: Any,
                                                                        full_adapter_folders: list[Path]) -> None:
        async def scenario(shard: ShardClient) -> None:
            for number, folder in enumerate(full_adapter_folders, 1):
                await load_adapter(shard, number, folder)
            first_output, second_output = await generate_alone(shard, 1), await generate_alone(shard, 2)
            await shard.reset()
            begun = await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1], adapter_id=1)))
            halfway = await shard.send(make_prefill(1, SequenceRow(8, PROMPT, [2, 3], adapter_id=2),
                                                    chunk_rows=[(8, 0, 9)], alongside=True))
            ended = await shard.send(make_prefill(1, chunk_rows=[(8, 9, len(PROMPT) - 9)], alongside=True))
            tokens = [get_tokens_by_sequence(answer)[7][0] for answer in (begun, halfway, ended)]
            assert tokens == [token for token, _ in first_output[:3]]
            assert get_tokens_by_sequence(ended)[8] == [second_output[0][0]]
        play_scenario(scenario)

    def test_resent_sequence_keeps_its_adapter(self, play_scenario: Any, full_adapter_folders: list[Path]) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 1, full_adapter_folders[0])
            tokens = [token for token, _ in await generate_alone(shard, 1)]
            await shard.reset()
            resent = SequenceRow(9, PROMPT + tokens[:2], [5, 6], num_prompt_tokens=len(PROMPT), adapter_id=1)
            assert get_tokens_by_sequence(await shard.send(make_prefill(2, resent)))[9] == [tokens[2]]
            assert get_tokens_by_sequence(await shard.send(make_decode(2)))[9] == [tokens[3]]
        play_scenario(scenario)

    def test_embedding_uses_its_own_adapter_whatever_the_other_texts_use(self, play_scenario: Any,
                                                                         full_adapter_folders: list[Path]) -> None:
        async def scenario(shard: ShardClient) -> None:
            for number, folder in enumerate(full_adapter_folders, 1):
                await load_adapter(shard, number, folder)
            together = get_embeddings(await shard.send(make_embed(PROMPT, PROMPT, PROMPT, adapters=[0, 1, 2])))
            assert len({tuple(vector) for vector in together}) == 3
            for adapter, vector in enumerate(together):
                assert get_embeddings(await shard.send(make_embed(PROMPT, adapters=[adapter]))) == [vector]
        play_scenario(scenario)

    # -- loading and unloading

    def test_failed_load_does_not_affect_running_sequences(
            self, play_scenario: Any, q_proj_adapter_folder: Path, broken_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 4, q_proj_adapter_folder)
            undisturbed = await generate_alone(shard, 4)
            await shard.reset()
            first = await shard.send(make_prefill(1, SequenceRow(7, PROMPT, [0, 1], adapter_id=4)))
            assert (await await_status_code(load_adapter(shard, 5, broken_adapter_folder))
                    == StatusCode.FAILED_PRECONDITION)
            assert await list_loaded_adapters(shard) == [4]
            answers = [first, *[await shard.send(make_decode(1)) for _ in range(3)]]
            assert [(answer.tokens[0], answer.logprobs[0]) for answer in answers] == undisturbed
            await load_adapter(shard, 5, q_proj_adapter_folder)
            assert await list_loaded_adapters(shard) == [4, 5]
        play_scenario(scenario, faults="refuse@load:2")

    def test_load_completes_while_steps_wait(self, play_scenario: Any, q_proj_adapter_folder: Path) -> None:
        """A load completes while an early message waits for the one before it."""
        async def scenario(shard: ShardClient) -> None:
            early = await shard.send_and_wait_for_receipt(make_decode(1), order=2)
            assert (await load_adapter(shard, 5, q_proj_adapter_folder)).bytes > 0
            await shard.send(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=5)), order=1)
            assert (await early).order == 2
        play_scenario(scenario)

    def test_unloading_an_adapter_does_not_affect_other_sequences(self, play_scenario: Any,
                                                                  full_adapter_folders: list[Path],
                                                                  q_proj_adapter_folder: Path) -> None:
        """A sequence with the unloaded adapter is still in the batch until the next message."""
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 1, full_adapter_folders[0])
            await load_adapter(shard, 2, q_proj_adapter_folder)
            undisturbed = [token for token, _ in await generate_alone(shard, 2)]
            await shard.reset()
            rows = SequenceRow(7, PROMPT, [0, 1], adapter_id=1), SequenceRow(8, PROMPT, [2, 3], adapter_id=2)
            outputs = [get_tokens_by_sequence(await shard.send(make_prefill(1, *rows)))[8]]
            await unload_adapter(shard, 1)
            outputs += [get_tokens_by_sequence(await shard.send(make_decode(1, keep=make_keep(8))))[8],
                        get_tokens_by_sequence(await shard.send(make_decode(1)))[8]]
            assert [token for [token] in outputs] == undisturbed[:3]
        play_scenario(scenario)

    def test_adapter_id_can_be_reused(self, play_scenario: Any, full_adapter_folders: list[Path],
                                      q_proj_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 1, q_proj_adapter_folder)
            expected = await generate_alone(shard, 1)
            await unload_adapter(shard, 1)
            await load_adapter(shard, 1, full_adapter_folders[0])
            await unload_adapter(shard, 1)
            await load_adapter(shard, 1, q_proj_adapter_folder)
            assert await generate_alone(shard, 1) == expected
        play_scenario(scenario)

    def test_reloading_an_adapter_id_replaces_the_adapter(
            self, play_scenario: Any, full_adapter_folders: list[Path], q_proj_adapter_folder: Path) -> None:
        """After a loss of shards the router may load an adapter again whose first load it never saw completed.

        The replaced adapter must not affect adapters that are loaded later.
        """
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 1, q_proj_adapter_folder)
            expected = await generate_alone(shard, 1)
            await unload_adapter(shard, 1)
            await load_adapter(shard, 1, full_adapter_folders[0])
            await load_adapter(shard, 1, q_proj_adapter_folder)
            await load_adapter(shard, 2, q_proj_adapter_folder)
            assert await list_loaded_adapters(shard) == [1, 2]
            outputs = await generate_alone(shard, 1), await generate_alone(shard, 2)
            if isinstance(shard.worker, DecoderWorker):  # output of the simulated worker depends on the number
                assert outputs == (expected, expected)
            await unload_adapter(shard, 1)
            assert await list_loaded_adapters(shard) == [2]
        play_scenario(scenario)

    def test_failed_reload_leaves_the_adapter_id_unloaded(
            self, play_scenario: Any, full_adapter_folders: list[Path], broken_adapter_folder: Path) -> None:
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 1, full_adapter_folders[0])
            assert (await await_status_code(load_adapter(shard, 1, broken_adapter_folder))
                    == StatusCode.FAILED_PRECONDITION)
            assert await list_loaded_adapters(shard) == []
            assert await shard.get_status_code(
                make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0], adapter_id=1))) == StatusCode.FAILED_PRECONDITION
        play_scenario(scenario, faults="refuse@load:2")

    def test_unloading_a_resource_that_is_not_loaded_is_an_error(self, play_scenario: Any,
                                                                 q_proj_adapter_folder: Path) -> None:
        """Adapters and grammars are numbered separately."""
        async def scenario(shard: ShardClient) -> None:
            await load_adapter(shard, 5, q_proj_adapter_folder)
            grammar = pb.UnloadRequest(epoch=1, kind=pb.KIND_GRAMMAR, id=5)
            assert await await_status_code(shard.stub.Unload(grammar)) == StatusCode.FAILED_PRECONDITION
            assert await await_status_code(unload_adapter(shard, 6)) == StatusCode.FAILED_PRECONDITION
            assert await list_loaded_adapters(shard) == [5]
            await unload_adapter(shard, 5)
            assert await await_status_code(unload_adapter(shard, 5)) == StatusCode.FAILED_PRECONDITION
            assert await shard.get_status_code(make_prefill(1, SequenceRow(7, SHORT_PROMPT, [0]))) == StatusCode.OK
        play_scenario(scenario)

    def test_reported_adapter_bytes_are_the_same_every_time(self, play_scenario: Any,
                                                            full_adapter_folders: list[Path]) -> None:
        async def scenario(shard: ShardClient) -> None:
            reported_bytes = [(await load_adapter(shard, 1, full_adapter_folders[0])).bytes,
                              (await load_adapter(shard, 2, full_adapter_folders[1])).bytes]
            await unload_adapter(shard, 1)
            reported_bytes.append((await load_adapter(shard, 1, full_adapter_folders[1])).bytes)
            assert reported_bytes[0] == reported_bytes[1] == reported_bytes[2] > 0
        play_scenario(scenario)
