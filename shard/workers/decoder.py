"""Worker with a model that generates: it applies messages to the shard's state, runs steps and returns answers. It owns
the cache whose blocks `ShardState` tracks. All calls but `info`, `close`, `load_resource` and `unload_resource` come
from one thread."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

from shard.attention.kv_cache import NUM_RESERVED_BLOCKS, KVCache
from shard.config import ShardConfig
from shard.errors import RejectedMessage, StartupOutOfMemory
from shard.hardware.cache_budget import (
    check_any_block_fits,
    count_fitting_blocks,
    describe_cache_size,
    explain_num_blocks,
)
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.runner.model_runner import StepOutputs
from shard.speculation.draft_planner import DraftPlanner, StepTimePredictor, broadcast_drafts
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.state.result_encoding import (
    PromptLogprobs,
    SequenceOutput,
    write_embeddings,
    write_prompt_logprobs,
    write_sequence_outputs,
)
from shard.state.sequence import ModelLimits
from shard.state.shard_state import cap_num_blocks
from shard.state.step import Step
from shard.telemetry.startup_progress import OnProgress, ignore_progress
from shard.workers.base_worker import BaseWorker, exit_process
from shard.workers.model_loading import LoadedDecoder, load_decoder_model
from shard.workers.step_overlap import OverlapQueue
from shard.workers.warmup import (
    SLOW_STEP_SECONDS,
    DecoderWarmupSteps,
    MaxStepSizes,
    WarmupTimingCache,
    measure_steps,
)

NUM_TRIAL_BLOCKS = 64  # cache of a step that is only run to measure its memory beside the cache

logger = logging.getLogger(__name__)


def choose_max_draft_tokens(speculate: int, device_type: str) -> int:
    """Return how many tokens are guessed per sequence and step: on CUDA none, where the next step begins before the
    tokens of the last one are known."""
    if speculate and device_type == "cuda":
        logger.warning("nothing is speculated on CUDA (--speculate): answers are the same without it")
        return 0
    return speculate


class DecoderWorker(BaseWorker[LoadedDecoder]):
    """Worker of a model that generates tokens."""

    def __init__(self, config: ShardConfig, exit: Callable[[], object] = exit_process,  # noqa: A002 - what it does
                 on_progress: OnProgress = ignore_progress) -> None:
        """Load the model; raises ValueError if it cannot be served. `exit` ends the process at once."""
        loaded_model = load_decoder_model(config, on_progress)
        limits = ModelLimits(loaded_model.config.vocabulary_size, loaded_model.config.max_positions,
                             1 + choose_max_draft_tokens(config.speculate, loaded_model.device.type),
                             mixed_steps=True, supported_wanted=frozenset({pb.VECTORS}))
        super().__init__(loaded_model, limits, exit)
        self._cache = loaded_model.make_cache(MIN_BLOCK_SIZE, 0)
        self._overlap_queue: OverlapQueue | None = None  # only where steps are captured
        self._draft_planner: DraftPlanner | None = None  # only with --speculate

    def info(self) -> pb.InfoAnswer:
        answer = super().info()
        answer.grammars = self._supports_grammars
        return answer

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        self.shard_state.check_warmup(request)
        self._loaded_model.runner.cuda_graph_runner = self._overlap_queue = None  # captured steps hold the old cache
        try:
            if self._loaded_model.device.type == "cuda":
                self._run_warmup(partial(self._run_largest_step, request))
            num_blocks, size_reason = self._choose_num_blocks(request)
            adapter_bytes = self._loaded_model.compute_adapter_budget()
            cache, answer = self._run_warmup(partial(self._allocate_and_measure, request, num_blocks),
                                             "--memory-fraction, ")
        except StartupOutOfMemory:
            raise
        except ValueError as error:  # not a failed step: the router gets the reason, and no traceback is logged
            raise RejectedMessage(str(error)) from error
        answer.cache_bytes = cache.num_blocks * self._loaded_model.bytes_per_block(request.block_size)
        answer.why = size_reason
        answer.adapter_bytes = adapter_bytes
        self._draft_planner = self._make_draft_planner(answer)
        self.shard_state.apply_warmup(request, num_blocks)
        self._cache, self._warmup_answer = cache, answer
        if (cuda_graph_runner := self._loaded_model.runner.cuda_graph_runner) is not None:
            self._overlap_queue = OverlapQueue(self.shard_state, cuda_graph_runner, lambda step: self._run_collective(
                partial(self._loaded_model.runner.run, step, cache)))
        return answer

    def _make_draft_planner(self, answer: pb.WarmupAnswer) -> DraftPlanner | None:
        """Return a planner that knows the times of the warm-up; None if nothing is speculated."""
        limits = self.shard_state.limits
        if limits.tokens_per_step == 1:
            return None
        step_seconds = StepTimePredictor((num_chunk_tokens or num_rows, seconds)
                                         for num_rows, num_chunk_tokens, seconds
                                         in zip(answer.rows, answer.chunk_tokens, answer.seconds, strict=True))
        return DraftPlanner(limits.tokens_per_step - 1, limits.max_positions, step_seconds)

    def _run_largest_step(self, request: pb.WarmupRequest) -> None:
        """Run the largest step while captured steps exist: the work space of both stays allocated, so it is not counted
        as available to the cache."""
        max_sizes = MaxStepSizes.from_request(request, self._max_sequence_length(request))
        cache = self._loaded_model.make_cache(request.block_size, NUM_TRIAL_BLOCKS)
        captured = self._loaded_model.capture_decode_steps(cache, max_sizes.max_rows, max_sizes.max_sequence_length)
        DecoderWarmupSteps(self._loaded_model.runner, cache, max_sizes).run_largest()
        del captured  # must exist until the step has run

    def _choose_num_blocks(self, request: pb.WarmupRequest) -> tuple[int, str]:
        """Return how many blocks fit on every rank, but no more than all sequences together can hold (more would only
        cost bookkeeping), and the reason for the size of the cache."""
        loaded, size = self._loaded_model, request.block_size
        budget, block_bytes = loaded.compute_cache_budget(), loaded.bytes_per_block(size)
        num_fitting_blocks = count_fitting_blocks(budget, block_bytes, NUM_RESERVED_BLOCKS)
        # before any rank raises: the others would wait for it forever
        min_fitting_blocks = loaded.group.all_reduce_min(num_fitting_blocks)
        check_any_block_fits(num_fitting_blocks, budget, block_bytes, NUM_RESERVED_BLOCKS)
        if min_fitting_blocks < 1:
            raise StartupOutOfMemory("another shard has no room for a cache")
        num_useful_blocks = request.max_batch_size * -(-self._max_sequence_length(request) // size)
        num_blocks = cap_num_blocks(request, min(min_fitting_blocks, num_useful_blocks))
        explanation = explain_num_blocks(num_blocks, num_fitting_blocks, num_useful_blocks, budget,
                                         is_alone=loaded.group.size == 1)
        logger.info("%s", describe_cache_size(num_blocks, size, block_bytes, num_fitting_blocks, explanation))
        return min(min_fitting_blocks, num_useful_blocks), explanation

    def _max_sequence_length(self, request: pb.WarmupRequest) -> int:
        """Return the most tokens of one sequence."""
        return request.max_total_tokens or self.shard_state.limits.max_positions

    def _allocate_and_measure(self, request: pb.WarmupRequest, num_blocks: int) -> tuple[KVCache, pb.WarmupAnswer]:
        cache = self._loaded_model.make_cache(request.block_size, cap_num_blocks(request, num_blocks))
        max_sizes = MaxStepSizes.from_request(request, min(self._max_sequence_length(request),
                                                           cache.block_size * cache.num_blocks))
        answer = pb.WarmupAnswer(block_size=cache.block_size, num_blocks=cache.num_blocks)
        loaded = self._loaded_model
        loaded.runner.cuda_graph_runner = loaded.capture_decode_steps(cache, max_sizes.max_rows,
                                                                      max_sizes.max_sequence_length)
        steps = DecoderWarmupSteps(loaded.runner, cache, max_sizes)
        timing_cache = self._find_warmup_timing_cache(max_sizes)
        if timing_cache is None or not timing_cache.restore(next(steps.make_series()[0]), loaded.group, answer):
            measure_steps(steps.make_series(), loaded.group, SLOW_STEP_SECONDS[loaded.device.type], answer)
            if timing_cache is not None:
                timing_cache.save(answer)
        return cache, answer

    def _find_warmup_timing_cache(self, max_sizes: MaxStepSizes) -> WarmupTimingCache | None:
        """Return None where steps are to be measured at each start: on GPUs, which compile and capture at warm-up; with
        speculation, which trusts the times for ever; with ranks on several machines."""
        loaded = self._loaded_model
        settings = loaded.settings
        if (loaded.device.type != "cpu" or self.shard_state.limits.tokens_per_step > 1
            or settings.machine_world_size != settings.world_size):
            return None
        return WarmupTimingCache(loaded.probe_cache, loaded.make_probe_key(
            loaded.config, asked="times of steps", limits=max_sizes))

    def reset(self, request: pb.ResetRequest) -> pb.ResetAnswer:
        if self._overlap_queue is not None:
            self._overlap_queue.discard_all()
        for sequence in self.shard_state.sequences.values():
            # An aborted step may have left arbitrary values in their blocks.
            self._cache.zero_blocks(sequence.blocks[sequence.num_cached_tokens
                                                    // self.shard_state.block_usage.block_size:])
        return super().reset(request)

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        self._finish_overlapped_steps()
        return self._run_step(request, self.shard_state.apply_prefill(request))

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer | PendingResult[pb.StepAnswer]:
        """Run a decode step. If the device chooses the tokens, return a `PendingResult`: the next step need not wait
        for it."""
        if self._overlap_queue is None:
            return self._run_step(request, self.shard_state.apply_decode(request))
        self._overlap_queue.wait_for_capacity()
        step = self.shard_state.apply_decode(request)
        pending_result = self._run_collective(partial(self._overlap_queue.begin_step, step, self._cache,
                                                      partial(self._make_answer, request)))
        if pending_result is not None:
            return pending_result
        self._overlap_queue.finish_all()
        step.separate_failed_sequences()  # sequences of this step may have failed in those just finished
        return self._run_step(request, step)

    def filter(self, request: pb.FilterRequest) -> pb.Acknowledgement:
        self._finish_overlapped_steps()
        return super().filter(request)

    def concat(self, request: pb.ConcatRequest) -> pb.Acknowledgement:
        self._finish_overlapped_steps()
        return super().concat(request)

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        self._finish_overlapped_steps()
        return self._run_texts(request, self._loaded_model.embedder.embed, write_embeddings)

    def _finish_overlapped_steps(self) -> None:
        if self._overlap_queue is not None:
            self._overlap_queue.finish_all()

    def _load_by_kind(self, request: pb.LoadRequest) -> int:
        """Load the resource and return its size in bytes. Only rank 0, which chooses the tokens, compiles grammars."""
        if request.kind != pb.KIND_GRAMMAR or not self._supports_grammars:
            return super()._load_by_kind(request)
        if self._loaded_model.grammars is not None:
            self._loaded_model.grammars.load(request.id, request.source)
        return len(request.source)

    @property
    def _supports_grammars(self) -> bool:
        return self._loaded_model.grammars is not None or self._loaded_model.group.rank > 0

    def unload_resource(self, request: pb.UnloadRequest) -> pb.UnloadAnswer:
        answer = super().unload_resource(request)
        if request.kind == pb.KIND_GRAMMAR and self._loaded_model.grammars is not None:
            self._loaded_model.grammars.unload(request.id)
        return answer

    def _run_step(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step) -> pb.StepAnswer:
        started_at = self._read_clock()
        run = (self._loaded_model.runner.run if self._draft_planner is None
               else partial(self._run_speculating, self._draft_planner))
        outputs = (self._run_collective(partial(run, step, self._cache)) if step.sequences
                   else StepOutputs({}, {}, {}))
        self.shard_state.apply_results(step, outputs.new_tokens, outputs.failures)
        return self._make_answer(request, step, outputs.by_sequence, self._read_clock() - started_at,
                                 outputs.prompt_logprobs)

    def _read_clock(self) -> float:
        """Return seconds that pass while steps run, but not while they are recorded: later steps are predicted from
        them, and a step is recorded once."""
        return perf_counter() - self._loaded_model.runner.graph_recording_seconds

    def _run_speculating(self, planner: DraftPlanner, step: Step, cache: KVCache) -> StepOutputs:
        loaded = self._loaded_model
        if not step.decodes:
            return loaded.runner.run(step, cache)
        if loaded.group.rank == 0:
            planner.plan(step)
        if loaded.group.size > 1:
            broadcast_drafts(step, planner.max_draft_tokens, loaded.group)
        started_at = self._read_clock()
        outputs = loaded.runner.run(step, cache)
        if loaded.group.rank == 0:
            planner.record(step, outputs.new_tokens, self._read_clock() - started_at)
        return outputs

    def _make_answer(self, request: pb.PrefillRequest | pb.DecodeRequest, step: Step,
                     outputs: Mapping[int, SequenceOutput], seconds: float,
                     prompt_logprobs: Mapping[int, PromptLogprobs] | None = None) -> pb.StepAnswer:
        answer = pb.StepAnswer(epoch=request.epoch, order=request.order, forward_seconds=seconds)
        if self._loaded_model.group.rank == 0:
            if prompt_logprobs:
                write_prompt_logprobs(answer, prompt_logprobs)
            write_sequence_outputs(answer, step, outputs)
        return answer
