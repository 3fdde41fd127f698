"""Common base of the workers with a model: info, messages that only the ledger handles, adapters."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from shard.errors import Exhausted, NoRoom
from shard.host.device import one_thread
from shard.host.dtype import name
from shard.host.memory import within_memory
from shard.pb import shard_pb2 as pb
from shard.state.ledger import Ledger, Refused
from shard.state.sequence import Limits
from shard.workers.load_decoder import Loaded
from shard.workers.load_encoder import LoadedEncoder
from shard.workers.shared_failure import Result, together

AnyLoaded = TypeVar("AnyLoaded", bound=Loaded | LoadedEncoder)


class LoadedWorker(Generic[AnyLoaded]):
    """Base class of ModelWorker and EncoderWorker."""

    def __init__(self, loaded: AnyLoaded, limits: Limits, exit: Callable[[], object]) -> None:  # noqa: A002 - what it does
        """Create the worker; `exit` ends the process at once."""
        self._loaded: AnyLoaded = loaded
        self._exit = exit
        self._epoch = 0
        self._warmup: pb.WarmupAnswer | None = None
        self.ledger = Ledger(limits)

    def close(self) -> None:
        """Do nothing: a step cannot be interrupted, it ends with the process."""

    def info(self) -> pb.InfoAnswer:
        loaded, limits, numbers = self._loaded, self.ledger.limits, self.ledger.loaded
        return pb.InfoAnswer(
            model=loaded.name, device=loaded.device.type, dtype=name(loaded.dtype), rank=loaded.group.rank,
            world_size=loaded.group.size, epoch=self._epoch, vocabulary_size=limits.vocabulary_size,
            max_positions=limits.max_positions, tokens_per_step=limits.tokens_per_step, mixed_steps=limits.mixed_steps,
            exact=not loaded.inexact, loaded_grammars=sorted(numbers[pb.KIND_GRAMMAR]),
            adapters=loaded.wardrobe.is_open, loaded_adapters=sorted(numbers[pb.KIND_ADAPTER]), warmup=self._warmup,
            generation=limits.generation, embeddings=pb.VECTORS in limits.wanted,
            classification=pb.LABELS in limits.wanted)

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self.ledger.reset()
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self.ledger.filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self.ledger.concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        """Load an adapter or a grammar, in a separate thread while steps run."""
        self.ledger.check_load(request)
        if (before := self.ledger.unload_before(request)) is not None:
            self.unload(before)
        with one_thread():
            num_bytes = self._load(request)
        self.ledger.load(request)
        return pb.LoadAnswer(bytes=num_bytes)

    def _load(self, request: pb.LoadRequest) -> int:
        """Load the resource and return its size in bytes."""
        if request.kind != pb.KIND_ADAPTER or not self._loaded.wardrobe.is_open:
            raise Refused(f"this shard takes no {pb.Kind.Name(request.kind)}")
        return self._loaded.wardrobe.load(request.id, Path(request.source))

    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self.ledger.unload(request)
        if request.kind == pb.KIND_ADAPTER:
            self._loaded.wardrobe.unload(request.id)
        return pb.UnloadAnswer()

    def _together(self, call: Callable[[], Result]) -> Result:
        return within_memory(self._loaded.device, partial(together, self._loaded.group, self._exit, call))

    def _rehearsed(self, call: Callable[[], Result], cures: str = "") -> Result:
        """Run steps up to the largest size. Raises NoRoom if memory is too small: nothing can be served then."""
        try:
            return self._together(call)
        except Exhausted as error:
            raise NoRoom(f"there is no memory for the largest step ({error}); lower {cures}--max-batch-prefill-tokens "
                         "or --max-batch-size") from error
