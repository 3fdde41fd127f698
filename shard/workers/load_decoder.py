"""Loading of a model from settings: only here device, number type, ranks, weights and attention are put together.

Every user error is a ValueError.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from shard.adapters.registry import AdapterRegistry
from shard.attention.backend import (
    AttentionBackend,
    CapturableAttentionBackend,
    choose_attention_backend,
    make_attention_backend,
)
from shard.attention.config import AttentionConfig
from shard.attention.kv_cache import KVCache, TransientKVCache
from shard.config import ShardConfig
from shard.hardware.device import get_device_name
from shard.hardware.memory_budget import (
    MemoryBudget,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    is_out_of_memory,
    read_gpu_memory,
    read_host_memory,
)
from shard.hardware.probe_cache import make_probe_key
from shard.models.config import ModelConfig
from shard.models.decoder import LanguageModel
from shard.models.registry import load_model, read_model_config
from shard.parallel.group import RankGroup
from shard.runner.cuda_graphs import CudaGraphRunner, MaxDecodeSize, make_capture_function
from shard.runner.decoder_embedder import DecoderEmbedder
from shard.runner.exactness_gate import QUICK_GATE_SIZES, THOROUGH_GATE_SIZES, ExactnessGate
from shard.runner.model_runner import ModelRunner
from shard.runner.pooling import read_pooling
from shard.sampling.grammar import GrammarRegistry, make_grammar_registry
from shard.sampling.sampler import Sampler
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.telemetry.startup_progress import CHECK_PHASE, OnProgress, ignore_progress
from shard.workers.model_loading import find_inexact_reason, load_from_weights, prepare_loading


@dataclass(frozen=True, slots=True)
class LoadedDecoder:
    """A model that generates with all that runs it: attention backend, runner, sampler's grammars, adapters, ranks."""

    name: str
    model: LanguageModel
    attention: AttentionBackend
    runner: ModelRunner
    embedder: DecoderEmbedder
    group: RankGroup
    device: torch.device
    dtype: torch.dtype
    inexact_reason: str  # why answers may depend on the rest of the batch, or empty
    grammars: GrammarRegistry | None  # on rank 0, if the model's tokenizer can be used
    adapter_registry: AdapterRegistry
    num_sharing_shards: int  # shards that take their cache from the same memory
    memory_fraction: float | None
    compute_adapter_budget: Callable[[], int]  # bytes for adapters
    uses_cuda_graphs: bool

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def make_cache(self, block_size: int, num_blocks: int) -> KVCache:
        return make_cache(self.model, block_size, num_blocks, self.dtype, self.device)

    def capture_decode_steps(self, cache: KVCache, max_size: MaxDecodeSize) -> CudaGraphRunner | None:
        """Capture decode steps for this cache. Return None unless captures are enabled, the whole model is on one GPU,
        and model and attention allow them. Raises ValueError if a capture fails for another reason than memory."""
        if (not self.uses_cuda_graphs or self.device.type != "cuda" or self.group.size > 1
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
            return compute_host_cache_budget(read_host_memory(), self.memory_fraction, self.num_sharing_shards)
        budget = compute_gpu_cache_budget(*read_gpu_memory(self.device.index), self.memory_fraction,
                                          self.num_sharing_shards)
        return replace(budget, bytes=max(0, budget.bytes - self.compute_adapter_budget()))


def load_decoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedDecoder:
    model_config = read_model_config(Path(config.model))
    context = prepare_loading(config, model_config)
    device, group, dtype, adapter_registry = context.device, context.group, context.dtype, context.adapter_registry
    backend = choose_attention_backend(config.attention, device.type)
    pooling = read_pooling(Path(config.model), "last", model_config.hidden_size, config.embedding_dim)
    model = load_from_weights(config, context, model_config, load_model, on_progress)
    attention = make_attention_backend(backend, model_config.num_heads // group.size, model.num_kv_heads,
                                       model_config.head_dim,
                                       AttentionConfig(model_config.attention_scale, model_config.attention_softcap,
                                                       model_config.sliding_windows))
    subject = asdict(model_config) | {"dtype": dtype, "attention": backend, "ranks": group.size,
                                      "device": get_device_name(device), "quantize": config.quantize,
                                      "adaptable": config.adaptable, "exact": config.exact}
    gate_model = model.copy_first_layers(model.num_representative_layers)
    gate = ExactnessGate(gate_model, model_config, attention,
                         partial(make_cache, gate_model, MIN_BLOCK_SIZE, dtype=dtype, device=device), device,
                         sizes=THOROUGH_GATE_SIZES if config.exact and device.type == "cuda" else QUICK_GATE_SIZES)
    on_progress(CHECK_PHASE, 0, 0)
    inexact_reason = find_inexact_reason(lambda: gate.find_difference() or adapter_registry.find_batch_dependence(),
                                         group, context.probe_cache, make_probe_key(subject), is_required=config.exact)
    grammars = make_grammar_registry(Path(config.model), model_config.vocabulary_size) if group.rank == 0 else None
    sampler = Sampler(model_config.vocabulary_size, device, grammars)
    runner = ModelRunner(model, attention, sampler, group, adapter_registry.adapter_routing, device=device)
    make_passing_cache = partial(make_cache, model, MIN_BLOCK_SIZE, dtype=dtype, device=device,
                                 cache_type=TransientKVCache)
    embedder = DecoderEmbedder(model, attention, pooling, adapter_registry.adapter_routing,
                               make_cache=make_passing_cache, device=device)
    return LoadedDecoder(config.model, model, attention, runner, embedder, group, device, dtype, inexact_reason,
                         grammars, adapter_registry, context.num_sharing_shards, config.memory_fraction,
                         partial(context.compute_adapter_budget, config.adapter_memory_fraction), config.cuda_graphs)


def make_cache(model: LanguageModel, block_size: int, num_blocks: int, dtype: torch.dtype,
               device: torch.device, *, cache_type: type[KVCache] = KVCache) -> KVCache:
    return cache_type(model.num_layers, model.num_kv_heads, model.head_dim, block_size=block_size,
                      num_blocks=num_blocks, dtype=dtype, device=device)
