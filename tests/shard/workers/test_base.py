"""Behaviour common to all workers that load a model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shard.errors import Exhausted, NoRoom
from shard.parallel.group import Alone
from shard.pb import shard_pb2 as pb
from shard.state.ledger import Refused
from shard.state.sequence import Limits
from shard.workers.base import LoadedWorker
from tests.shard.messages import WARMUP, Row, concat, filtered, prefill

LIMITS = Limits(512, 1024, 1, mixed_steps=True, wanted=frozenset({pb.VECTORS}))


class Wardrobe:
    """Fake adapter registry."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.adapters: dict[int, Path] = {}
        self.num_threads = 0  # of torch, during the last load

    def load(self, number: int, folder: Path) -> int:
        self.num_threads = torch.get_num_threads()
        self.adapters[number] = folder
        return 8

    def unload(self, number: int) -> None:
        del self.adapters[number]


class Model:
    name, inexact = "loom", ""
    device, dtype, group = torch.device("cpu"), torch.float32, Alone()

    def __init__(self, wardrobe: Wardrobe) -> None:
        self.wardrobe = wardrobe


def made(wardrobe: Wardrobe | None = None) -> Any:
    model: Any = Model(wardrobe or Wardrobe())
    return LoadedWorker[Any](model, LIMITS, lambda: None)


def an_adapter(kind: Any = pb.KIND_ADAPTER) -> pb.LoadRequest:
    return pb.LoadRequest(kind=kind, id=5, source="/a")


def test_it_says_what_it_is() -> None:
    info = made().info()
    assert (info.model, info.device, info.dtype, info.world_size, info.exact) == ("loom", "cpu", "float32", 1, True)
    assert (info.vocabulary_size, info.max_positions, info.mixed_steps) == (512, 1024, True)
    assert (info.generation, info.embeddings, info.classification, info.grammars) == (True, True, False, False)


def test_an_epoch_begins_with_an_empty_ledger() -> None:
    worker = made()
    worker.ledger.batches[1] = {}
    assert worker.reset(pb.ResetRequest(epoch=3)) == pb.ResetAnswer(epoch=3)
    assert (worker.info().epoch, worker.ledger.batches) == (3, {})


def test_messages_of_the_ledger_alone_are_acknowledged() -> None:
    worker = made()
    worker.ledger.warmup(WARMUP, 32)
    for number in (1, 2):
        worker.ledger.prefill(prefill(number, Row(number, [1, 2], [number])))
    for verb, message in ((worker.concat, concat(1, 2)), (worker.filter, filtered(1, 2))):
        message.epoch, message.order = 3, 7
        assert verb(message) == pb.Acknowledgement(epoch=3, order=7)
    assert [*worker.ledger.sequences] == [2]


def test_an_adapter_is_the_ledgers_and_the_wardrobes() -> None:
    worker = made(wardrobe := Wardrobe())
    assert worker.load(an_adapter()).bytes == 8
    assert (wardrobe.adapters, [*worker.info().loaded_adapters]) == ({5: Path("/a")}, [5])
    assert wardrobe.num_threads == 1
    worker.unload(pb.UnloadRequest(kind=pb.KIND_ADAPTER, id=5))
    assert (wardrobe.adapters, [*worker.info().loaded_adapters]) == ({}, [])


@pytest.mark.parametrize(("is_open", "kind"), [(False, pb.KIND_ADAPTER), (True, pb.KIND_GRAMMAR)])
def test_what_it_does_not_take_is_refused_and_leaves_nothing(is_open: bool, kind: Any) -> None:
    worker = made(Wardrobe(is_open=is_open))
    with pytest.raises(Refused, match=f"this shard takes no {pb.Kind.Name(kind)}"):
        worker.load(an_adapter(kind))
    assert not worker.ledger.loaded[kind]


def test_what_one_of_several_ranks_cannot_finish_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    model: Any = Model(Wardrobe())
    worker = LoadedWorker[Any](model, LIMITS, lambda: ended.append(1))
    monkeypatch.setattr(Model.group, "size", 2, raising=False)
    with pytest.raises(ZeroDivisionError):
        worker._together(lambda: 1 / 0)
    assert ended == [1]


def test_a_step_that_finds_no_memory_is_told_as_that() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(Exhausted, match=r"2.00 GiB"):
        made()._together(fail)
    with pytest.raises(NoRoom, match=r"for the largest step \(CUDA out of memory.*lower --max-batch-prefill-tokens"):
        made()._rehearsed(fail)
