"""Behaviour common to all workers that load a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.shards.protocol_messages import WARMUP_REQUEST, SequenceRow, make_concat, make_filter, make_prefill

from shard.errors import PeerLost, RejectedMessage, StartupOutOfMemory, StepOutOfMemory
from shard.parallel.group import SingleRankGroup
from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits
from shard.workers.base_worker import BaseWorker

SINGLE_RANK = SingleRankGroup()
MESSAGE_LIMITS = ModelLimits(512, 1024, 1, mixed_steps=True, supported_wanted=frozenset({pb.VECTORS}))


class TwoRankGroup(SingleRankGroup):
    rank, size = 0, 2


class FakeAdapterRegistry:
    """Adapter registry that keeps the folder of each loaded adapter, and reads nothing."""

    def __init__(self, *, supports_adapters: bool = True) -> None:
        self.supports_adapters = supports_adapters
        self.adapters: dict[int, Path] = {}
        self.num_threads = 0  # of torch, during the last load

    def load(self, adapter: int, folder: Path) -> int:
        self.num_threads = torch.get_num_threads()
        self.adapters[adapter] = folder
        return 8

    def unload(self, adapter: int) -> None:
        del self.adapters[adapter]


class FakeLoadedModel:
    name, inexact_reason, quantization = "loom", "", "int8"
    device, dtype = torch.device("cpu"), torch.float32

    def __init__(self, loaded_adapters: FakeAdapterRegistry, group: SingleRankGroup) -> None:
        self.loaded_adapters, self.group = loaded_adapters, group


def make_worker(loaded_adapters: FakeAdapterRegistry | None = None, group: SingleRankGroup = SINGLE_RANK,
                exit: Callable[[], object] = lambda: None) -> Any:  # noqa: A002 - as BaseWorker names it
    model: Any = FakeLoadedModel(loaded_adapters or FakeAdapterRegistry(), group)
    return BaseWorker[Any](model, MESSAGE_LIMITS, exit)


def make_load_request(kind: Any = pb.KIND_ADAPTER) -> pb.LoadRequest:
    return pb.LoadRequest(kind=kind, id=5, source="/a")


def test_info_describes_the_worker() -> None:
    info = make_worker().info()
    assert (info.model, info.device, info.dtype, info.world_size, info.exact) == ("loom", "cpu", "float32", 1, True)
    assert (info.vocabulary_size, info.max_positions, info.mixed_steps) == (512, 1024, True)
    assert info.quantization == "int8"
    assert (info.generation, info.embeddings, info.classification, info.grammars) == (True, True, False, False)


def test_reset_begins_an_epoch_with_an_empty_shard_state() -> None:
    worker = make_worker()
    worker.shard_state.batches[1] = {}
    assert worker.reset(pb.ResetRequest(epoch=3)) == pb.ResetAnswer(epoch=3)
    assert (worker.info().epoch, worker.shard_state.batches) == (3, {})


def test_filter_and_concat_are_acknowledged() -> None:
    worker = make_worker()
    worker.shard_state.apply_warmup(WARMUP_REQUEST, 32)
    for number in (1, 2):
        worker.shard_state.apply_prefill(make_prefill(number, SequenceRow(number, [1, 2], [number])))
    for verb, message in ((worker.concat, make_concat(1, 2)), (worker.filter, make_filter(1, 2))):
        message.epoch, message.order = 3, 7
        assert verb(message) == pb.Acknowledgement(epoch=3, order=7)
    assert [*worker.shard_state.sequences] == [2]


def test_adapter_is_loaded_into_shard_state_and_registry() -> None:
    worker = make_worker(loaded_adapters := FakeAdapterRegistry())
    assert worker.load_resource(make_load_request()).bytes == 8
    assert (loaded_adapters.adapters, [*worker.info().loaded_adapters]) == ({5: Path("/a")}, [5])
    assert loaded_adapters.num_threads == 1
    worker.unload_resource(pb.UnloadRequest(kind=pb.KIND_ADAPTER, id=5))
    assert (loaded_adapters.adapters, [*worker.info().loaded_adapters]) == ({}, [])


@pytest.mark.parametrize(("is_open", "kind"), [(False, pb.KIND_ADAPTER), (True, pb.KIND_GRAMMAR)])
def test_unsupported_resource_is_rejected_and_leaves_nothing(is_open: bool, kind: Any) -> None:
    worker = make_worker(FakeAdapterRegistry(supports_adapters=is_open))
    with pytest.raises(RejectedMessage, match=f"this shard takes no {pb.Kind.Name(kind)}"):
        worker.load_resource(make_load_request(kind))
    assert not worker.shard_state.loaded_ids[kind]


def test_failed_collective_of_several_ranks_ends_the_process() -> None:
    exits: list[int] = []
    worker = make_worker(group=TwoRankGroup(), exit=lambda: exits.append(1))
    with pytest.raises(ZeroDivisionError):
        worker._run_collective(lambda: 1 / 0)
    assert exits == [1]


@pytest.mark.parametrize(("message", "exits"), [
    ("could not create a primitive", [1]), ("could not create a primitive descriptor for a matmul primitive", [])])
def test_product_that_goes_on_failing_ends_the_process(message: str, exits: list[int]) -> None:
    """oneDNN keeps a primitive that it could not create for want of memory: each request failed, one by one."""
    def raise_error() -> None:
        raise RuntimeError(message)

    called: list[int] = []
    with pytest.raises(RuntimeError, match=message):
        make_worker(exit=lambda: called.append(1))._run_collective(raise_error)
    assert called == exits


def test_out_of_memory_in_a_step_is_reported_as_such() -> None:
    def raise_out_of_memory() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(StepOutOfMemory, match=r"2.00 GiB"):
        make_worker()._run_collective(raise_out_of_memory)
    with pytest.raises(StartupOutOfMemory,
                       match=r"for the largest step \(CUDA out of memory.*lower --max-batch-prefill-tokens"):
        make_worker()._run_warmup(raise_out_of_memory)


# -- a rank that fails in a step of several ranks exits; a single shard continues


def test_result_is_returned() -> None:
    assert make_worker(group=TwoRankGroup())._run_collective(lambda: 5) == 5
    assert make_worker()._run_collective(lambda: 7) == 7


@pytest.mark.parametrize(("group", "ends"), [(SingleRankGroup(), 0), (TwoRankGroup(), 1)], ids=["alone", "one of two"])
def test_failure_ends_the_process_only_in_a_group(group: SingleRankGroup, ends: int) -> None:
    def raise_out_of_memory() -> None:
        raise RuntimeError("out of memory")

    exits: list[int] = []
    with pytest.raises(StepOutOfMemory, match="out of memory"):
        make_worker(group=group, exit=lambda: exits.append(1))._run_collective(raise_out_of_memory)
    assert len(exits) == ends


@pytest.mark.parametrize(("error", "traced"), [
    (RuntimeError("its own"), True), (PeerLost("rank 1 is gone"), False)], ids=["its own", "another's"])
def test_only_own_failures_are_logged_with_a_traceback(
        error: Exception, traced: bool, caplog: pytest.LogCaptureFixture) -> None:
    def raise_error() -> None:
        raise error

    with pytest.raises(type(error)):
        make_worker(group=TwoRankGroup())._run_collective(raise_error)
    [record] = caplog.records
    assert record.getMessage() == f"this shard ends with its group: {error}"
    assert bool(record.exc_info) == traced


# -- errors that mean that memory ran out


@pytest.mark.parametrize(("error", "reason"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"),
     "CUDA out of memory. Tried to allocate 2.00 GiB."),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes."), "5 bytes"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "ALLOC_FAILED"),
    (RuntimeError("Triton Error [CUDA]: out of memory"), "out of memory"),
    (MemoryError(), "there is no memory")])
def test_out_of_memory_errors_are_recognized(error: Exception, reason: str) -> None:
    def raise_error() -> None:
        raise error
    with pytest.raises(StepOutOfMemory, match=reason):
        make_worker()._run_collective(raise_error)


def test_out_of_memory_hidden_by_another_error_is_recognized() -> None:
    """Capturing a CUDA graph raises such an error."""
    def raise_error_after_out_of_memory() -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    with pytest.raises(StepOutOfMemory, match="during capture"):
        make_worker()._run_collective(raise_error_after_out_of_memory)


def test_impossibly_large_allocation_is_out_of_memory() -> None:
    with pytest.raises(StepOutOfMemory):
        make_worker()._run_collective(lambda: torch.empty(2**60))


def test_other_errors_are_not_converted() -> None:
    def raise_other_error() -> None:
        raise RuntimeError("no")
    with pytest.raises(RuntimeError, match="no"):
        make_worker()._run_collective(raise_other_error)
