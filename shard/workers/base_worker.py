"""Common base of the workers with a model: info, messages that only `ShardState` handles, adapters, and collective
calls, which all ranks complete, or the group of shards is replaced (docs/concepts/exactness.md, "Collectives of a
step")."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Generic, TypeVar

from torch import cuda

from shard.errors import PeerLost, RejectedMessage, StartupOutOfMemory, StepOutOfMemory
from shard.hardware.cache_budget import is_out_of_memory, is_unrecoverable_error
from shard.hardware.device_setup import use_single_torch_thread
from shard.hardware.dtype import dtype_name
from shard.pb import shard_pb2 as pb
from shard.state.sequence import ModelLimits, PoolingText
from shard.state.shard_state import ShardState
from shard.workers.model_loading import LoadedDecoder, LoadedEncoder

Result = TypeVar("Result")
AnyLoadedModel = TypeVar("AnyLoadedModel", bound=LoadedDecoder | LoadedEncoder)

logger = logging.getLogger(__name__)


def exit_process() -> None:
    """End the process at once, as a crash does."""
    os._exit(70)


class BaseWorker(Generic[AnyLoadedModel]):
    """Base class of DecoderWorker and EncoderWorker."""

    def __init__(self, loaded_model: AnyLoadedModel, limits: ModelLimits, exit: Callable[[], object]) -> None:  # noqa: A002 - what it does
        """Create the worker; `exit` ends the process at once."""
        self._loaded_model: AnyLoadedModel = loaded_model
        self._exit = exit
        self._epoch = 0
        self._warmup_answer: pb.WarmupAnswer | None = None
        self.shard_state = ShardState(limits)

    def close(self) -> None:
        """Do nothing: a step cannot be interrupted, it ends with the process."""

    def info(self) -> pb.InfoAnswer:
        loaded, limits, loaded_ids = self._loaded_model, self.shard_state.limits, self.shard_state.loaded_ids
        return pb.InfoAnswer(
            model=loaded.name, device=loaded.device.type, dtype=dtype_name(loaded.dtype), rank=loaded.group.rank,
            world_size=loaded.group.size, epoch=self._epoch, vocabulary_size=limits.vocabulary_size,
            max_positions=limits.max_positions, tokens_per_step=limits.tokens_per_step, mixed_steps=limits.mixed_steps,
            exact=not loaded.inexact_reason, loaded_grammars=sorted(loaded_ids[pb.KIND_GRAMMAR]),
            adapters=loaded.loaded_adapters.supports_adapters, loaded_adapters=sorted(loaded_ids[pb.KIND_ADAPTER]),
            warmup=self._warmup_answer, generation=limits.generation, embeddings=pb.VECTORS in limits.supported_wanted,
            classification=pb.LABELS in limits.supported_wanted, quantization=loaded.quantization)

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self.shard_state.reset()
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self.shard_state.apply_filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self.shard_state.apply_concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def _run_texts(self, request: pb.EmbedRequest, run: Callable[[list[PoolingText]], Result],
                   write: Callable[[pb.EmbedAnswer, Result], None]) -> pb.EmbedAnswer:
        """Return the answer that `write` fills on rank 0 with the results of `run`. No state of the texts is kept."""
        texts = self.shard_state.parse_embed_texts(request)
        started_at = perf_counter()
        answer = pb.EmbedAnswer(epoch=request.epoch, order=request.order)
        results = self._run_collective(partial(run, texts))
        if self._loaded_model.group.rank == 0:
            write(answer, results)
        answer.forward_seconds = perf_counter() - started_at
        return answer

    def load_resource(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        """Load an adapter or a grammar, in a separate thread while steps run."""
        self.shard_state.check_load_request(request)
        if (preceding_unload := self.shard_state.make_unload_if_loaded(request)) is not None:
            self.unload_resource(preceding_unload)
        with use_single_torch_thread():
            num_bytes = self._load_by_kind(request)
        self.shard_state.mark_loaded(request)
        return pb.LoadAnswer(bytes=num_bytes)

    def _load_by_kind(self, request: pb.LoadRequest) -> int:
        """Load the resource and return its size in bytes."""
        if request.kind != pb.KIND_ADAPTER or not self._loaded_model.loaded_adapters.supports_adapters:
            raise RejectedMessage(f"this shard takes no {pb.Kind.Name(request.kind)}")
        return self._loaded_model.loaded_adapters.load(request.id, Path(request.source))

    def unload_resource(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self.shard_state.mark_unloaded(request)
        if request.kind == pb.KIND_ADAPTER:
            self._loaded_model.loaded_adapters.unload(request.id)
        return pb.UnloadAnswer()

    def _run_collective(self, call: Callable[[], Result]) -> Result:
        """Run a collective call. If it fails on one rank, the ranks are out of step, and some may wait for the others
        forever: so that rank ends its process, and the group is replaced. If there is no memory for the call, release
        all its tensors, then raise StepOutOfMemory."""
        try:
            return call()
        except Exception as error:
            if self._loaded_model.group.size > 1:
                # If another rank is the cause, its own log is more useful than a traceback here.
                logger.error("this shard ends with its group: %s", error, exc_info=not isinstance(error, PeerLost))
                self._exit()
            if is_unrecoverable_error(error):
                logger.error("this shard ends, since its products go on failing: %s", error)
                self._exit()
            if not isinstance(error, MemoryError | RuntimeError) or not is_out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0] or "there is no memory"
        # outside the handler, since the error's traceback holds the tensors
        if self._loaded_model.device.type == "cuda":
            cuda.empty_cache()  # cached pieces have other sizes than later steps need
        raise StepOutOfMemory(reason)

    def _run_warmup(self, call: Callable[[], Result], flags_to_lower: str = "") -> Result:
        """Run steps up to the largest size. Raises StartupOutOfMemory if memory is too small: nothing can be served
        then."""
        try:
            return self._run_collective(call)
        except StepOutOfMemory as error:
            raise StartupOutOfMemory(
                f"there is no memory for the largest step ({error}); lower {flags_to_lower}--max-batch-prefill-tokens "
                "or --max-batch-size") from error
