"""The worker with an encoder: texts in, embeddings or labels out. It generates nothing, and keeps nothing of a text.

Knows nothing of the wire, nor of how a step is computed (`encoding.py`). All calls but `info`, `close`, `load` and
`unload` come from one thread.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

from shard.answer import write_labels, write_vectors
from shard.batch import Ledger, Refused, asked_blocks
from shard.config import ShardConfig
from shard.encoder_loading import LoadedEncoder, load
from shard.encoder_warmup import TextRehearsal
from shard.pb import shard_pb2 as pb
from shard.precision import name
from shard.progress import OnProgress, untold
from shard.sequence import Limits
from shard.texts import Text
from shard.together import leave, together
from shard.warmup import PATIENCE, Sizes, note


class EncoderWorker:
    def __init__(self, config: ShardConfig, exit: Callable[[], object] = leave,  # noqa: A002 - what it does
                 on_progress: OnProgress = untold) -> None:
        """Loads the model; raises ValueError when it cannot be served. `exit` ends the process at once."""
        self._loaded: LoadedEncoder = load(config, on_progress)
        self._together = partial(together, self._loaded.group, exit)
        self._epoch = 0
        self._warmup: pb.WarmupAnswer | None = None
        described = self._loaded.config
        self.ledger = Ledger(Limits(
            described.vocabulary_size, described.max_positions, 1, mixed_steps=False, generation=False,
            wanted=frozenset({pb.LABELS if described.labels else pb.VECTORS})))

    def close(self) -> None:
        """A step cannot be woken up; the process ends it."""

    def info(self) -> pb.InfoAnswer:
        loaded, limits = self._loaded, self.ledger.limits
        return pb.InfoAnswer(
            model=loaded.name, device=loaded.device.type, dtype=name(loaded.dtype), rank=loaded.group.rank,
            world_size=loaded.group.size, epoch=self._epoch, vocabulary_size=limits.vocabulary_size,
            max_positions=limits.max_positions, tokens_per_step=limits.tokens_per_step, mixed_steps=limits.mixed_steps,
            exact=not loaded.inexact, adapters=loaded.wardrobe.is_open,
            loaded_adapters=sorted(self.ledger.loaded[pb.KIND_ADAPTER]), warmup=self._warmup,
            embeddings=pb.VECTORS in limits.wanted, classification=pb.LABELS in limits.wanted,
            labels=loaded.config.labels)

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        """There is no cache. Its blocks are as many as all texts together would need, since a router may reckon with
        them."""
        self.ledger.check_warmup(request)
        longest = request.max_total_tokens or self.ledger.limits.max_positions
        num_blocks = request.max_batch_size * -(-longest // request.block_size)
        sizes = Sizes(request.max_batch_size, request.max_prefill_tokens, longest)
        answer = pb.WarmupAnswer(block_size=request.block_size, num_blocks=asked_blocks(request, num_blocks),
                                 why="an encoder keeps nothing, its cache takes no memory")
        note(self._together(self._rehearsal(sizes).measure), answer)
        self.ledger.warmup(request, num_blocks)
        self._warmup = answer
        return answer

    def _rehearsal(self, sizes: Sizes) -> TextRehearsal:
        loaded = self._loaded
        run = loaded.encoding.labels if loaded.config.labels else loaded.encoding.vectors
        return TextRehearsal(run, sizes, loaded.group, PATIENCE[loaded.device.type])

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self.ledger.reset()
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        self.ledger.prefill(request)
        raise AssertionError("the ledger refuses whatever generates")

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        self.ledger.decode(request)
        raise AssertionError("the ledger refuses whatever generates")

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self.ledger.filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self.ledger.concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        texts, began = self.ledger.embed(request), perf_counter()
        answer = pb.EmbedAnswer(epoch=request.epoch, order=request.order)
        self._together(partial(self._tell, texts, request.wanted, answer))
        answer.forward_seconds = perf_counter() - began
        return answer

    def _tell(self, texts: list[Text], wanted: int, answer: pb.EmbedAnswer) -> None:
        loaded = self._loaded
        if wanted == pb.LABELS:
            labelled = loaded.encoding.labels(texts)
            if loaded.group.rank == 0:
                write_labels(answer, labelled)
        else:
            vectors = loaded.encoding.vectors(texts)
            if loaded.group.rank == 0:
                write_vectors(answer, vectors)

    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        """Beside the steps, in a thread of its own."""
        self.ledger.check_load(request)
        if request.kind != pb.KIND_ADAPTER or not self._loaded.wardrobe.is_open:
            raise Refused(f"this shard takes no {pb.Kind.Name(request.kind)}")
        num_bytes = self._loaded.wardrobe.load(request.id, Path(request.source))
        self.ledger.load(request)
        return pb.LoadAnswer(bytes=num_bytes)

    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self.ledger.unload(request)
        self._loaded.wardrobe.unload(request.id)
        return pb.UnloadAnswer()
