"""Worker with an encoder: texts in, embeddings or labels out. It generates no tokens, and keeps no state of a text.

All calls but `info`, `close`, `load` and `unload` come from one thread.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.state.columns import Text
from shard.state.ledger import asked_blocks
from shard.state.results import write_labels, write_vectors
from shard.state.sequence import Limits
from shard.telemetry.startup_progress import OnProgress, untold
from shard.workers.base import LoadedWorker
from shard.workers.encoder_warmup import TextRehearsal
from shard.workers.load_encoder import LoadedEncoder, load
from shard.workers.shared_failure import leave
from shard.workers.warmup import PATIENCE, Sizes, note


class EncoderWorker(LoadedWorker[LoadedEncoder]):
    def __init__(self, config: ShardConfig, exit: Callable[[], object] = leave,  # noqa: A002 - what it does
                 on_progress: OnProgress = untold) -> None:
        """Load the model; raises ValueError if it cannot be served. `exit` ends the process at once."""
        loaded = load(config, on_progress)
        limits = Limits(loaded.config.vocabulary_size, loaded.config.max_positions, 1, mixed_steps=False,
                        generation=False, wanted=frozenset({pb.LABELS if loaded.config.labels else pb.VECTORS}))
        super().__init__(loaded, limits, exit)

    def info(self) -> pb.InfoAnswer:
        answer = super().info()
        answer.labels.extend(self._loaded.config.labels)
        return answer

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        """Measure steps. There is no cache; the answer has as many blocks as all texts together would need, since a
        router may rely on them."""
        self.ledger.check_warmup(request)
        longest = request.max_total_tokens or self.ledger.limits.max_positions
        num_blocks = request.max_batch_size * -(-longest // request.block_size)
        sizes = Sizes(request.max_batch_size, request.max_prefill_tokens, longest)
        answer = pb.WarmupAnswer(block_size=request.block_size, num_blocks=asked_blocks(request, num_blocks),
                                 why="an encoder keeps nothing, its cache takes no memory",
                                 adapter_bytes=self._loaded.adapter_room())
        note(self._rehearsed(self._rehearsal(sizes).measure), answer)
        self.ledger.warmup(request, num_blocks)
        self._warmup = answer
        return answer

    def _rehearsal(self, sizes: Sizes) -> TextRehearsal:
        loaded = self._loaded
        run = loaded.encoding.labels if loaded.config.labels else loaded.encoding.vectors
        return TextRehearsal(run, sizes, loaded.group, PATIENCE[loaded.device.type])

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        self.ledger.prefill(request)
        raise AssertionError("the ledger refuses whatever generates")

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        self.ledger.decode(request)
        raise AssertionError("the ledger refuses whatever generates")

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
