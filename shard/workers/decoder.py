"""Worker with a real model: it applies messages to the ledger, runs steps (`runner/runner.py`) and returns answers.

It owns the cache whose blocks the ledger tracks. All calls but `info`, `close`, `load` and `unload` come from one
thread.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

from shard.attention.kv_cache import NUM_SPARE, Cache
from shard.config import ShardConfig
from shard.deferred import Later
from shard.errors import NoRoom
from shard.host.memory import check_fitting, explain, num_fitting, reason
from shard.pb import shard_pb2 as pb
from shard.runner.cuda_graphs import Extent
from shard.runner.runner import Outcome
from shard.state.ledger import Refused, Step, asked_blocks
from shard.state.results import PromptPart, Said, write_prompts, write_rows, write_vectors
from shard.state.sequence import Limits
from shard.telemetry.startup_progress import OnProgress, untold
from shard.workers.base import LoadedWorker
from shard.workers.load_decoder import Loaded, load
from shard.workers.overlap import Ahead
from shard.workers.shared_failure import leave
from shard.workers.warmup import PATIENCE, Rehearsal, Sizes, note

NOTHING: Mapping[int, PromptPart] = {}
REHEARSED_BLOCKS = 64  # cache of a step that is only run to measure its memory beside the cache

log = logging.getLogger(__name__)


class ModelWorker(LoadedWorker[Loaded]):
    """Worker of a model that generates tokens."""

    def __init__(self, config: ShardConfig, exit: Callable[[], object] = leave,  # noqa: A002 - what it does
                 on_progress: OnProgress = untold) -> None:
        """Load the model; raises ValueError if it cannot be served. `exit` ends the process at once."""
        loaded = load(config, on_progress)
        limits = Limits(loaded.config.vocabulary_size, loaded.config.max_positions, 1, mixed_steps=True,
                        wanted=frozenset({pb.VECTORS}))
        super().__init__(loaded, limits, exit)
        self._cache = loaded.cache(16, 0)
        self._ahead = Ahead(self.ledger, loaded.runner, self._compute)

    def info(self) -> pb.InfoAnswer:
        answer = super().info()
        answer.grammars = self._takes_grammars
        return answer

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        self.ledger.check_warmup(request)
        self._loaded.runner.replay(None)  # the captured steps hold the old cache
        try:
            if self._loaded.device.type == "cuda":
                self._rehearsed(partial(self._run_largest, request))
            num_blocks, why = self._fitting_blocks(request)
            adapter_bytes = self._loaded.adapter_room()
            cache, answer = self._rehearsed(partial(self._measure, request, num_blocks), "--memory-fraction, ")
        except NoRoom:
            raise
        except ValueError as error:  # not a failed step: the router gets the reason, and no traceback is logged
            raise Refused(str(error)) from error
        answer.cache_bytes, answer.why = cache.num_blocks * self._loaded.block_bytes(request.block_size), why
        answer.adapter_bytes = adapter_bytes
        self.ledger.warmup(request, num_blocks)
        self._cache, self._warmup = cache, answer
        return answer

    def _run_largest(self, request: pb.WarmupRequest) -> None:
        """Run the largest step while captured steps exist: the work space of both stays allocated, so it is not counted
        as available to the cache."""
        sizes = Sizes.of(request, self._longest(request))
        cache = self._loaded.cache(request.block_size, REHEARSED_BLOCKS)
        captured = self._loaded.replays(cache, Extent(sizes.rows, sizes.length))
        self._rehearsal(cache, sizes).run_largest()
        del captured  # must exist until the step has run

    def _fitting_blocks(self, request: pb.WarmupRequest) -> tuple[int, str]:
        """Return how many blocks fit on every rank, but no more than all sequences together can hold (more would only
        cost bookkeeping), and the reason for the size of the cache."""
        loaded, size = self._loaded, request.block_size
        room, block_bytes = loaded.room(), loaded.block_bytes(size)
        fitting = num_fitting(room, block_bytes, NUM_SPARE)
        least = loaded.group.minimum(fitting)  # before any rank raises: the others would wait for it forever
        check_fitting(fitting, room, block_bytes, NUM_SPARE)
        if least < 1:
            raise NoRoom("another shard has no room for a cache")
        useful = request.max_batch_size * -(-self._longest(request) // size)
        num_blocks = asked_blocks(request, min(least, useful))
        why = reason(num_blocks, fitting, useful, room)
        log.info("%s", explain(num_blocks, size, block_bytes, fitting, why))
        return min(least, useful), why

    def _longest(self, request: pb.WarmupRequest) -> int:
        """Return the most tokens of one sequence."""
        return request.max_total_tokens or self.ledger.limits.max_positions

    def _measure(self, request: pb.WarmupRequest, num_blocks: int) -> tuple[Cache, pb.WarmupAnswer]:
        cache = self._loaded.cache(request.block_size, asked_blocks(request, num_blocks))
        sizes = Sizes.of(request, min(self._longest(request), cache.block_size * cache.num_blocks))
        answer = pb.WarmupAnswer(block_size=cache.block_size, num_blocks=cache.num_blocks)
        self._loaded.runner.replay(self._loaded.replays(cache, Extent(sizes.rows, sizes.length)))
        note(self._rehearsal(cache, sizes).measure(), answer)
        return cache, answer

    def _rehearsal(self, cache: Cache, sizes: Sizes) -> Rehearsal:
        loaded = self._loaded
        return Rehearsal(loaded.runner, cache, sizes, loaded.group, PATIENCE[loaded.device.type])

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        self._ahead.give_up()
        for sequence in self.ledger.sequences.values():
            # An aborted step may have left arbitrary values in their blocks.
            self._cache.zero(sequence.blocks[sequence.num_cached // self.ledger.blocks.size:])
        return super().reset(request)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        self._ahead.finish()
        return self._run(request, self.ledger.prefill(request))

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer | Later[pb.StepAnswer]:
        """Run a decode step. If the device chooses the tokens, return a `Later`: the next step need not wait for it."""
        self._ahead.make_room()
        step = self.ledger.decode(request)
        later = self._together(partial(self._ahead.begin, step, self._cache, partial(self._tell, request)))
        if later is not None:
            return later
        self._ahead.finish()
        step.leave_out_failed()
        return self._run(request, step)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self._ahead.finish()
        return super().filter(request)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self._ahead.finish()
        return super().concat(request)

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        self._ahead.finish()
        texts, began = self.ledger.embed(request), perf_counter()
        answer = pb.EmbedAnswer(epoch=request.epoch, order=request.order)
        vectors = self._together(partial(self._loaded.embedder.vectors, texts))
        if self._loaded.group.rank == 0:
            write_vectors(answer, vectors)
        answer.forward_seconds = perf_counter() - began
        return answer

    def _load(self, request: pb.LoadRequest) -> int:
        """Load the resource and return its size in bytes. Only rank 0, which chooses the tokens, compiles grammars."""
        if request.kind != pb.KIND_GRAMMAR or not self._takes_grammars:
            return super()._load(request)
        if self._loaded.grammars is not None:
            self._loaded.grammars.load(request.id, request.source)
        return len(request.source)

    @property
    def _takes_grammars(self) -> bool:
        return self._loaded.grammars is not None or self._loaded.group.rank > 0

    def unload(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        answer = super().unload(request)
        if request.kind == pb.KIND_GRAMMAR and self._loaded.grammars is not None:
            self._loaded.grammars.unload(request.id)
        return answer

    def _run(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step) -> pb.StepAnswer:
        began, said, prompts = perf_counter(), dict[int, Said](), dict[int, PromptPart]()
        if step.sequences:
            outcome = self._compute(step)
            said, prompts = outcome.said, outcome.prompts
            self.ledger.finish(step, {i: word.tokens for i, word in said.items()}, outcome.failures)
        return self._tell(request, step, said, perf_counter() - began, prompts)

    def _compute(self, step: Step) -> Outcome:
        return self._together(partial(self._loaded.runner.run, step, self._cache))

    def _tell(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step, said: Mapping[int, Said], seconds: float,
              prompts: Mapping[int, PromptPart] = NOTHING) -> pb.StepAnswer:
        answer = pb.StepAnswer(epoch=request.epoch, order=request.order, forward_seconds=seconds)
        if self._loaded.group.rank == 0:
            write_prompts(answer, prompts)
            write_rows(answer, step, said)
        return answer
