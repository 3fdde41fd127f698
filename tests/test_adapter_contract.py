"""The contract between router and shards as far as adapters go, against every kind of worker over real gRPC."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.peft_adapters import tiny_adapter
from support.small_checkpoints import tiny_checkpoint

from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker
from shard.workers.decoder import ModelWorker
from tests.shard.messages import Row, decode, embed, filtered, keep, prefill, rows_of, vectors_of
from tests.shard.peer import Peer, code_of
from tests.shard.peer import play as play_with

Code = grpc.StatusCode
WORKERS = {
    "simulated": lambda _, config: SimulatedWorker(config),
    "model": lambda model, config: ModelWorker(replace(config, model=str(model), threads=1, adaptable=True)),
}
PROMPT = list(b"weave me something nice")
SHORT = list(b"abc")


@pytest.fixture(params=WORKERS)
def play(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> Callable[..., None]:
    return partial(play_with, partial(WORKERS[request.param], model), tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama", max_position_embeddings=256)


@pytest.fixture(scope="module")
def wide(model: Path) -> list[Path]:
    """Return two adapters that change every linear."""
    return [tiny_adapter(model, seed=seed, r=4) for seed in (1, 2)]


@pytest.fixture(scope="module")
def narrow(model: Path) -> Path:
    """Return an adapter of the same rank that changes only `q_proj`."""
    return tiny_adapter(model, seed=3, r=4, target_modules=["q_proj"])


@pytest.fixture
def broken(wide: list[Path], tmp_path: Path) -> Path:
    """Return an adapter with truncated weights; the simulated worker, which reads no files, rejects it by a fault."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in wide[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[:-1 if path.suffix == ".safetensors" else None])
    return folder


async def load(shard: Peer, number: int, folder: Path) -> pb.LoadAnswer:
    asked = pb.LoadRequest(epoch=shard.epoch, kind=pb.KIND_ADAPTER, id=number, source=str(folder))
    answer: pb.LoadAnswer = await shard.stub.Load(asked)
    return answer


async def unload(shard: Peer, number: int) -> None:
    await shard.stub.Unload(pb.UnloadRequest(epoch=shard.epoch, kind=pb.KIND_ADAPTER, id=number))


async def loaded(shard: Peer) -> list[int]:
    return list((await shard.stub.Info(pb.InfoRequest())).loaded_adapters)


async def heard(shard: Peer, adapter: int, *, steps: int = 3) -> list[tuple[int, float]]:
    """Return tokens and logprobs of a sequence that runs alone with this adapter, in a new epoch."""
    await shard.reset()
    answers = [await shard.send(prefill(1, Row(7, PROMPT, [0, 1], adapter=adapter)))]
    answers += [await shard.send(decode(1)) for _ in range(steps)]
    return [(answer.tokens[0], answer.logprobs[0]) for answer in answers]


class TestAdapters:
    def test_a_sequence_may_name_what_was_loaded_until_it_is_unloaded(self, play: Any, narrow: Path) -> None:
        async def story(shard: Peer) -> None:
            assert (await shard.stub.Info(pb.InfoRequest())).adapters
            await load(shard, 5, narrow)
            await shard.send(prefill(1, Row(7, SHORT, [0], adapter=5)))
            await shard.send(filtered(1))
            await unload(shard, 5)
            assert await loaded(shard) == []
            assert await shard.code(prefill(1, Row(7, SHORT, [0], adapter=5))) == Code.FAILED_PRECONDITION
        play(story)

    def test_reset_keeps_what_is_loaded(self, play: Any, wide: list[Path], narrow: Path) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 9, wide[0])
            await load(shard, 5, narrow)
            before = await heard(shard, 5)
            await shard.reset()
            assert await loaded(shard) == [5, 9]
            assert await heard(shard, 5) == before
        play(story)

    @pytest.mark.parametrize("number", [5, 2**64 - 1])
    def test_a_sequence_that_names_what_is_not_loaded_is_refused_and_changes_nothing(
            self, play: Any, narrow: Path, number: int) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 4, narrow)
            await shard.send(prefill(1, Row(7, SHORT, [0], adapter=4)))
            state = shard.state()
            assert await shard.code(prefill(2, Row(8, SHORT, [1]), Row(9, SHORT, [2], adapter=number))) == (
                Code.FAILED_PRECONDITION)
            assert shard.state() == state
            assert await shard.code(decode(1)) == Code.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.code(prefill(1, Row(7, SHORT, [0], adapter=4))) == Code.OK
        play(story)

    def test_a_text_that_names_what_is_not_loaded_is_refused(self, play: Any, narrow: Path) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 4, narrow)
            assert await shard.code(embed(SHORT, SHORT, adapters=[4, 5])) == Code.FAILED_PRECONDITION
            await shard.reset()
            assert await shard.code(embed(SHORT, SHORT, adapters=[4, 0])) == Code.OK
        play(story)

    def test_in_a_step_each_goes_by_its_own_to_the_bit(self, play: Any, wide: list[Path], narrow: Path) -> None:
        async def story(shard: Peer) -> None:
            for number, folder in enumerate((*wide, narrow), 1):
                await load(shard, number, folder)
            alone = [await heard(shard, adapter) for adapter in range(4)]
            assert len({tuple(said) for said in alone}) == 4
            await shard.reset()
            rows = [Row(10 + adapter, PROMPT, [2 * adapter, 2 * adapter + 1], adapter=adapter) for adapter in range(4)]
            together = [await shard.send(prefill(1, *rows)), *[await shard.send(decode(1)) for _ in range(3)]]
            for place, said in enumerate(alone):
                assert [(answer.tokens[place], answer.logprobs[place]) for answer in together] == said
        play(story)

    def test_a_chunk_and_those_alongside_go_by_their_own(self, play: Any, wide: list[Path]) -> None:
        async def story(shard: Peer) -> None:
            for number, folder in enumerate(wide, 1):
                await load(shard, number, folder)
            one, other = await heard(shard, 1), await heard(shard, 2)
            await shard.reset()
            begun = await shard.send(prefill(1, Row(7, PROMPT, [0, 1], adapter=1)))
            halfway = await shard.send(prefill(1, Row(8, PROMPT, [2, 3], adapter=2), run=[(8, 0, 9)], alongside=True))
            ended = await shard.send(prefill(1, run=[(8, 9, len(PROMPT) - 9)], alongside=True))
            said = [rows_of(answer)[7][0] for answer in (begun, halfway, ended)]
            assert said == [token for token, _ in one[:3]]
            assert rows_of(ended)[8] == [other[0][0]]
        play(story)

    def test_who_is_sent_again_goes_on_by_its_adapter(self, play: Any, wide: list[Path]) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 1, wide[0])
            said = [token for token, _ in await heard(shard, 1)]
            await shard.reset()
            again = Row(9, PROMPT + said[:2], [5, 6], prompt=len(PROMPT), adapter=1)
            assert rows_of(await shard.send(prefill(2, again)))[9] == [said[2]]
            assert rows_of(await shard.send(decode(2)))[9] == [said[3]]
        play(story)

    def test_a_text_goes_by_its_own_whoever_else_is_there(self, play: Any, wide: list[Path]) -> None:
        async def story(shard: Peer) -> None:
            for number, folder in enumerate(wide, 1):
                await load(shard, number, folder)
            together = vectors_of(await shard.send(embed(PROMPT, PROMPT, PROMPT, adapters=[0, 1, 2])))
            assert len({tuple(vector) for vector in together}) == 3
            for adapter, vector in enumerate(together):
                assert vectors_of(await shard.send(embed(PROMPT, adapters=[adapter]))) == [vector]
        play(story)

    # -- loading and unloading

    def test_what_cannot_be_loaded_is_refused_and_nobody_notices(
            self, play: Any, narrow: Path, broken: Path) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 4, narrow)
            undisturbed = await heard(shard, 4)
            await shard.reset()
            first = await shard.send(prefill(1, Row(7, PROMPT, [0, 1], adapter=4)))
            assert await code_of(load(shard, 5, broken)) == Code.FAILED_PRECONDITION
            assert await loaded(shard) == [4]
            answers = [first, *[await shard.send(decode(1)) for _ in range(3)]]
            assert [(answer.tokens[0], answer.logprobs[0]) for answer in answers] == undisturbed
            await load(shard, 5, narrow)
            assert await loaded(shard) == [4, 5]
        play(story, faults="refuse@load:2")

    def test_it_comes_beside_the_steps(self, play: Any, narrow: Path) -> None:
        """A load completes while an early message waits for the one before it."""
        async def story(shard: Peer) -> None:
            early = await shard.early(decode(1), order=2)
            assert (await load(shard, 5, narrow)).bytes > 0
            await shard.send(prefill(1, Row(7, SHORT, [0], adapter=5)), order=1)
            assert (await early).order == 2
        play(story)

    def test_who_stays_notices_nothing_when_an_adapter_leaves(self, play: Any, wide: list[Path], narrow: Path) -> None:
        """A sequence with the unloaded adapter is still in the batch until the next message."""
        async def story(shard: Peer) -> None:
            await load(shard, 1, wide[0])
            await load(shard, 2, narrow)
            undisturbed = [token for token, _ in await heard(shard, 2)]
            await shard.reset()
            rows = Row(7, PROMPT, [0, 1], adapter=1), Row(8, PROMPT, [2, 3], adapter=2)
            said = [rows_of(await shard.send(prefill(1, *rows)))[8]]
            await unload(shard, 1)
            said += [rows_of(await shard.send(decode(1, keep=keep(8))))[8], rows_of(await shard.send(decode(1)))[8]]
            assert [token for [token] in said] == undisturbed[:3]
        play(story)

    def test_a_number_may_be_given_to_another(self, play: Any, wide: list[Path], narrow: Path) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 1, narrow)
            expected = await heard(shard, 1)
            await unload(shard, 1)
            await load(shard, 1, wide[0])
            await unload(shard, 1)
            await load(shard, 1, narrow)
            assert await heard(shard, 1) == expected
        play(story)

    def test_what_is_loaded_again_takes_the_place_of_what_was_there(
            self, play: Any, wide: list[Path], narrow: Path) -> None:
        """After a loss of shards the router may load an adapter again whose first load it never saw completed.

        The replaced adapter must not affect adapters that are loaded later.
        """
        async def story(shard: Peer) -> None:
            await load(shard, 1, narrow)
            expected = await heard(shard, 1)
            await unload(shard, 1)
            await load(shard, 1, wide[0])
            await load(shard, 1, narrow)
            await load(shard, 2, narrow)
            assert await loaded(shard) == [1, 2]
            said = await heard(shard, 1), await heard(shard, 2)
            if isinstance(shard.worker, ModelWorker):  # output of the simulated worker depends on the number
                assert said == (expected, expected)
            await unload(shard, 1)
            assert await loaded(shard) == [2]
        play(story)

    def test_of_what_cannot_be_loaded_again_nothing_is_left(
            self, play: Any, wide: list[Path], broken: Path) -> None:
        async def story(shard: Peer) -> None:
            await load(shard, 1, wide[0])
            assert await code_of(load(shard, 1, broken)) == Code.FAILED_PRECONDITION
            assert await loaded(shard) == []
            assert await shard.code(prefill(1, Row(7, SHORT, [0], adapter=1))) == Code.FAILED_PRECONDITION
        play(story, faults="refuse@load:2")

    def test_what_is_not_loaded_cannot_be_unloaded(self, play: Any, narrow: Path) -> None:
        """Adapters and grammars are numbered separately."""
        async def story(shard: Peer) -> None:
            await load(shard, 5, narrow)
            grammar = pb.UnloadRequest(epoch=1, kind=pb.KIND_GRAMMAR, id=5)
            assert await code_of(shard.stub.Unload(grammar)) == Code.FAILED_PRECONDITION
            assert await code_of(unload(shard, 6)) == Code.FAILED_PRECONDITION
            assert await loaded(shard) == [5]
            await unload(shard, 5)
            assert await code_of(unload(shard, 5)) == Code.FAILED_PRECONDITION
            assert await shard.code(prefill(1, Row(7, SHORT, [0]))) == Code.OK
        play(story)

    def test_it_takes_as_much_every_time(self, play: Any, wide: list[Path]) -> None:
        async def story(shard: Peer) -> None:
            took = [(await load(shard, 1, wide[0])).bytes, (await load(shard, 2, wide[1])).bytes]
            await unload(shard, 1)
            took.append((await load(shard, 1, wide[1])).bytes)
            assert took[0] == took[1] == took[2] > 0
        play(story)
