"""Worker with an encoder: texts in, embeddings or labels out. It generates no tokens, and keeps no state of a text.

All calls but `info`, `close`, `load_resource` and `unload_resource` come from one thread.
"""

from collections.abc import Callable
from functools import partial

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.state.result_encoding import write_embeddings, write_labels
from shard.state.sequence import ModelLimits
from shard.state.shard_state import cap_num_blocks
from shard.telemetry.startup_progress import OnProgress, ignore_progress
from shard.workers.base_worker import BaseWorker, exit_process
from shard.workers.model_loading import LoadedEncoder, load_encoder_model
from shard.workers.warmup import SLOW_STEP_SECONDS, MaxStepSizes, make_encoder_series, measure_steps


class EncoderWorker(BaseWorker[LoadedEncoder]):
    """Worker of a model that embeds or labels texts."""

    def __init__(self, config: ShardConfig, exit: Callable[[], object] = exit_process,  # noqa: A002 - what it does
                 on_progress: OnProgress = ignore_progress) -> None:
        """Load the model; raises ValueError if it cannot be served. `exit` ends the process at once."""
        loaded_model = load_encoder_model(config, on_progress)
        limits = ModelLimits(loaded_model.config.vocabulary_size, loaded_model.config.max_positions, 1,
                             mixed_steps=False, generation=False,
                             supported_wanted=frozenset({pb.LABELS if loaded_model.config.labels else pb.VECTORS}))
        super().__init__(loaded_model, limits, exit)

    def info(self) -> pb.InfoAnswer:
        answer = super().info()
        answer.labels.extend(self._loaded_model.config.labels)
        return answer

    def warmup(self, request: pb.WarmupRequest) -> pb.WarmupAnswer:
        """Measure steps. There is no cache; the answer has as many blocks as all texts together would need, since a
        router may rely on them."""
        self.shard_state.check_warmup(request)
        longest = request.max_total_tokens or self.shard_state.limits.max_positions
        num_blocks = request.max_batch_size * -(-longest // request.block_size)
        max_sizes = MaxStepSizes(request.max_batch_size, request.max_prefill_tokens, longest)
        answer = pb.WarmupAnswer(block_size=request.block_size, num_blocks=cap_num_blocks(request, num_blocks),
                                 why="an encoder keeps nothing, its cache takes no memory",
                                 adapter_bytes=self._loaded_model.compute_adapter_budget())
        loaded = self._loaded_model
        step_series = make_encoder_series(loaded.runner.label_tokens if loaded.config.labels else loaded.runner.embed,
                                          max_sizes)
        self._run_warmup(partial(measure_steps, step_series, loaded.group, SLOW_STEP_SECONDS[loaded.device.type],
                                 answer))
        self.shard_state.apply_warmup(request, num_blocks)
        self._warmup_answer = answer
        return answer

    def prefill(self, request: pb.PrefillRequest) -> pb.StepAnswer:
        self.shard_state.apply_prefill(request)
        raise AssertionError("the shard's state refuses whatever generates")

    def decode(self, request: pb.DecodeRequest) -> pb.StepAnswer:
        self.shard_state.apply_decode(request)
        raise AssertionError("the shard's state refuses whatever generates")

    def embed(self, request: pb.EmbedRequest) -> pb.EmbedAnswer:
        if request.wanted == pb.LABELS:
            return self._run_texts(request, self._loaded_model.runner.label_tokens, write_labels)
        return self._run_texts(request, self._loaded_model.runner.embed, write_embeddings)
