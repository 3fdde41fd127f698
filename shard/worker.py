"""The worker with a real model: verbs in, answers out. It keeps the ledger, and the cache whose blocks that names.

Knows nothing of the wire, nor of how a step is computed (`runner.py`). All calls but `info` and `close` come from one
thread.
"""

import logging
from time import perf_counter

from shard.answer import write_prompts, write_rows
from shard.batch import Ledger, Refused, Step
from shard.cache import NUM_SPARE, Cache
from shard.config import ShardConfig
from shard.loading import Loaded, load
from shard.memory import count_blocks, explain
from shard.pb import shard_pb2 as pb
from shard.precision import name
from shard.sequence import Limits
from shard.warmup import PATIENCE, Rehearsal, Sizes

log = logging.getLogger(__name__)


class ModelWorker:
    def __init__(self, config: ShardConfig) -> None:
        """Loads the model; raises ValueError when it cannot be served."""
        self._loaded: Loaded = load(config)
        self._cache = self._loaded.cache(16, 0)
        self._epoch = 0
        self._warmup: pb.WarmupAnswer | None = None
        described = self._loaded.config
        self.ledger = Ledger(Limits(described.vocabulary_size, described.max_positions, 1, mixed_steps=True))

    def close(self) -> None:
        """A step cannot be woken up; the process ends it."""

    def info(self) -> pb.InfoAnswer:
        loaded, limits = self._loaded, self.ledger.limits
        return pb.InfoAnswer(
            model=loaded.name, device=loaded.device.type, dtype=name(loaded.dtype), rank=loaded.group.rank,
            world_size=loaded.group.size, epoch=self._epoch, vocabulary_size=limits.vocabulary_size,
            max_positions=limits.max_positions, tokens_per_step=limits.tokens_per_step, mixed_steps=limits.mixed_steps,
            exact=not loaded.inexact, warmup=self._warmup)

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        self.ledger.check_warmup(request)
        loaded, block_bytes = self._loaded, self._loaded.block_bytes(request.block_size)
        if loaded.device.type == "cuda":
            self._run_largest(request)
        room = loaded.room()
        fitting = count_blocks(room, block_bytes, NUM_SPARE)
        # More than all sequences together can hold would only be lists to keep.
        useful = request.max_batch_size * -(-request.max_total_tokens // request.block_size)
        self.ledger.warmup(request, loaded.group.minimum(min(fitting, max(useful, 1))))
        blocks = self.ledger.blocks
        self._cache = loaded.cache(blocks.size, blocks.count)
        log.info("%s", explain(blocks.count, blocks.size, block_bytes, fitting, room))
        self._warmup = self._measure(request)
        return self._warmup

    def _run_largest(self, request: pb.WarmupRequest) -> None:
        """What it works with stays with the process, and is not available to the cache."""
        sizes = Sizes.of(request, request.max_total_tokens or self.ledger.limits.max_positions)
        cache = self._loaded.cache(request.block_size, -(-sizes.length // request.block_size))
        self._rehearsal(cache, sizes).run_largest()

    def _measure(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        blocks = self.ledger.blocks
        answer = pb.WarmupAnswer(block_size=blocks.size, num_blocks=blocks.count)
        for measured in self._rehearsal(self._cache, Sizes.of(request, blocks.size * blocks.count)).measure():
            answer.rows.append(measured.rows)
            answer.chunk_tokens.append(measured.chunk_tokens)
            answer.context.append(measured.context)
            answer.seconds.append(measured.seconds)
        return answer

    def _rehearsal(self, cache: Cache, sizes: Sizes) -> Rehearsal:
        loaded = self._loaded
        return Rehearsal(loaded.runner, cache, sizes, loaded.group, PATIENCE[loaded.device.type])

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        for sequence in self.ledger.sequences.values():
            # A step that was broken off may have left anything in their blocks.
            self._cache.zero(sequence.blocks[sequence.num_cached // self.ledger.blocks.size:])
        self.ledger.reset()
        self._epoch = request.epoch
        return pb.ResetAnswer(epoch=request.epoch)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        return self._run(request, self.ledger.prefill(request))

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        return self._run(request, self.ledger.decode(request))

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self.ledger.filter(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self.ledger.concat(request)
        return pb.Acknowledgement(epoch=request.epoch, order=request.order)

    def load(self, request: pb.LoadRequest) -> pb.LoadAnswer:
        self.ledger.check_load(request)
        raise Refused(f"this shard takes no {pb.Kind.Name(request.kind)}")

    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        self.ledger.unload(request)
        return pb.UnloadAnswer()

    def _run(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step) -> pb.StepAnswer:
        answer, began = pb.StepAnswer(epoch=request.epoch, order=request.order), perf_counter()
        if step.sequences:
            outcome = self._loaded.runner.run(step, self._cache)
            said = outcome.said
            self.ledger.finish(step, {i: word.tokens for i, word in said.items()}, outcome.failures)
            if self._loaded.group.rank == 0:
                write_prompts(answer, outcome.prompts)
        else:
            said = {}
        if self._loaded.group.rank == 0:
            write_rows(answer, step, said)
        answer.forward_seconds = perf_counter() - began
        return answer
