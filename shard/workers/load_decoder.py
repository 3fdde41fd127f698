"""Loading of a model from settings: only here device, number type, ranks, weights and attention are put together.

Every user error is a ValueError.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from shard.attention.backend import (
    AttentionBackend,
    CapturableAttentionBackend,
    choose_attention_backend,
    make_attention_backend,
)
from shard.attention.config import AttentionConfig
from shard.attention.kv_cache import KVCache, TransientKVCache
from shard.config import ShardConfig
from shard.hardware.memory_budget import (
    MemoryBudget,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    is_out_of_memory,
    read_gpu_memory,
    read_host_memory,
)
from shard.models.config import ModelConfig
from shard.models.decoder import LanguageModel
from shard.models.registry import load_model, read_model_config
from shard.runner.cuda_graphs import CudaGraphRunner, MaxDecodeSize, make_capture_function
from shard.runner.decoder_embedder import DecoderEmbedder
from shard.runner.exactness_gate import QUICK_GATE_SIZES, THOROUGH_GATE_SIZES, ExactnessGate
from shard.runner.model_runner import ModelRunner
from shard.runner.pooling import read_pooling
from shard.sampling.grammar import GrammarRegistry, make_grammar_registry
from shard.sampling.sampler import Sampler
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.telemetry.startup_progress import OnProgress, ignore_progress
from shard.workers.model_loading import LoadContext, prepare_loading


@dataclass(frozen=True)
class LoadedDecoder(LoadContext):
    """A model that generates with all that runs it."""

    model: LanguageModel
    attention: AttentionBackend
    runner: ModelRunner
    embedder: DecoderEmbedder
    inexact_reason: str  # why answers may depend on the rest of the batch, or empty
    grammars: GrammarRegistry | None  # on rank 0, if the model's tokenizer can be used

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def make_cache(self, block_size: int, num_blocks: int) -> KVCache:
        return make_cache(self.model, block_size, num_blocks, self.dtype, self.device)

    def capture_decode_steps(self, cache: KVCache, max_size: MaxDecodeSize) -> CudaGraphRunner | None:
        """Capture decode steps for this cache. Return None unless captures are enabled, the whole model is on one GPU,
        and model and attention allow them. Raises ValueError if a capture fails for another reason than memory."""
        if (not self.settings.cuda_graphs or self.device.type != "cuda" or self.group.size > 1
            or not self.model.is_capturable or not isinstance(self.attention, CapturableAttentionBackend)):
            return None
        self.adapter_registry.adapter_routing.set_rows(())  # not those of an earlier step
        try:
            return CudaGraphRunner(self.model, self.attention, cache, max_size, make_capture_function(self.device),
                                   adapter_routing=self.adapter_registry.capturable_routing)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(f"steps cannot be captured as CUDA graphs here ({error.__context__ or error}); "
                             "--no-cuda-graphs launches them piece by piece") from error

    def bytes_per_block(self, block_size: int) -> int:
        model = self.model
        return KVCache.bytes_per_block(model.num_layers, model.num_kv_heads, model.head_dim, block_size, self.dtype)

    def compute_cache_budget(self) -> MemoryBudget:
        """Return the room for the cache; call this after the largest step has run."""
        if self.device.type != "cuda":
            return compute_host_cache_budget(read_host_memory(), self.settings.memory_fraction, self.num_sharing_shards)
        budget = compute_gpu_cache_budget(*read_gpu_memory(self.device.index), self.settings.memory_fraction,
                                          self.num_sharing_shards)
        return replace(budget, bytes=max(0, budget.bytes - self.compute_adapter_budget()))


def load_decoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedDecoder:
    folder = Path(config.model)
    model_config = read_model_config(folder)
    context = prepare_loading(config, model_config)
    device, group, dtype, adapter_routing = (context.device, context.group, context.dtype,
                                             context.adapter_registry.adapter_routing)
    backend = choose_attention_backend(config.attention, device.type)
    pooling = read_pooling(folder, "last", model_config.hidden_size, config.embedding_dim)
    model = context.load_from_weights(model_config, on_progress, load_model)
    attention = make_attention_backend(backend, model_config.num_heads // group.size, model.num_kv_heads,
                                       model_config.head_dim,
                                       AttentionConfig(model_config.attention_scale, model_config.attention_softcap,
                                                       model_config.sliding_windows))
    gate_model = model.copy_first_layers(model.num_representative_layers)
    gate = ExactnessGate(gate_model, model_config, attention,
                         partial(make_cache, gate_model, MIN_BLOCK_SIZE, dtype=dtype, device=device), device,
                         sizes=THOROUGH_GATE_SIZES if config.exact and device.type == "cuda" else QUICK_GATE_SIZES)
    inexact_reason = context.check_exactness(model_config, on_progress, gate.find_difference, attention=backend)
    grammars = make_grammar_registry(folder, model_config.vocabulary_size) if group.rank == 0 else None
    sampler = Sampler(model_config.vocabulary_size, device, grammars)
    runner = ModelRunner(model, attention, sampler, group, adapter_routing, device=device)
    make_passing_cache = partial(make_cache, model, MIN_BLOCK_SIZE, dtype=dtype, device=device,
                                 cache_type=TransientKVCache)
    embedder = DecoderEmbedder(model, attention, pooling, adapter_routing, make_cache=make_passing_cache,
                               device=device)
    return LoadedDecoder(**vars(context), model=model, attention=attention, runner=runner, embedder=embedder,
                         inexact_reason=inexact_reason, grammars=grammars)


def make_cache(model: LanguageModel, block_size: int, num_blocks: int, dtype: torch.dtype,
               device: torch.device, *, cache_type: type[KVCache] = KVCache) -> KVCache:
    return cache_type(model.num_layers, model.num_kv_heads, model.head_dim, block_size=block_size,
                      num_blocks=num_blocks, dtype=dtype, device=device)
