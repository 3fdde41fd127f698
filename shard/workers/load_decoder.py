"""Loading of a model from settings: only here device, number type, ranks, weights and attention are put together.

Every user error is a ValueError.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

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
from shard.checkpoint.reader import CheckpointReader, count_weight_bytes
from shard.config import ShardConfig
from shard.hardware.cgroups import count_usable_cores
from shard.hardware.cublas import disable_split_k
from shard.hardware.device import choose_device, choose_num_threads, count_ranks_on_gpu, get_device_name
from shard.hardware.dtype import (
    ProbeCache,
    agree_on_dtype,
    choose_dtype,
    dtype_name,
    make_packed_matmul,
    measure_fastest_dtype,
)
from shard.hardware.memory import (
    AvailableMemory,
    MemoryBudget,
    check_weights_fit,
    compute_adapter_budget,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    is_out_of_memory,
    read_gpu_memory,
    read_host_memory,
)
from shard.hardware.probe_cache import FileProbeCache, NoProbeCache, make_probe_key
from shard.models.config import ModelConfig
from shard.models.decoder import LanguageModel
from shard.models.read_config import read_model_config
from shard.models.registry import load_model
from shard.ops.linear import can_pack
from shard.ops.triton_support import has_triton
from shard.parallel.group import RankGroup, choose_dist_backend, join_group
from shard.runner.cuda_graphs import CudaGraphRunner, MaxDecodeSize, make_capture_function
from shard.runner.decoder_embedder import DecoderEmbedder
from shard.runner.exactness_gate import QUICK_GATE_SIZES, THOROUGH_GATE_SIZES, ExactnessGate
from shard.runner.pooling import read_pooling
from shard.runner.runner import ModelRunner
from shard.sampling.grammar import GrammarRegistry, make_grammar_registry
from shard.sampling.sampler import Sampler
from shard.telemetry.startup_progress import CHECK_PHASE, LOAD_PHASE, OnProgress, ignore_progress

AnyModelConfig = TypeVar("AnyModelConfig", bound=ModelConfig)
AnyModel = TypeVar("AnyModel")

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class LoadContext:
    """Context of loading that is set up before weights are read, whatever the model."""

    device: torch.device
    group: RankGroup
    dtype: torch.dtype
    probe_cache: ProbeCache
    adapter_registry: AdapterRegistry
    num_sharing_shards: int  # shards that take what they need from the same memory

    def compute_adapter_budget(self, fraction: float) -> int:
        """Return the bytes for this shard's adapters."""
        if not self.adapter_registry.supports_adapters:
            return 0
        if self.device.type != "cuda":
            return compute_adapter_budget(read_host_memory(), fraction, self.num_sharing_shards)
        total = AvailableMemory(read_gpu_memory(self.device.index)[1], "that the GPU has")
        return compute_adapter_budget(total, fraction, self.num_sharing_shards)


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
                         partial(make_cache, gate_model, 16, dtype=dtype, device=device), device,
                         sizes=THOROUGH_GATE_SIZES if config.exact and device.type == "cuda" else QUICK_GATE_SIZES)
    on_progress(CHECK_PHASE, 0, 0)
    inexact_reason = find_inexact_reason(lambda: gate.find_difference() or adapter_registry.find_batch_dependence(),
                                         group, context.probe_cache, make_probe_key(subject), is_required=config.exact)
    grammars = make_grammar_registry(Path(config.model), model_config.vocabulary_size) if group.rank == 0 else None
    sampler = Sampler(model_config.vocabulary_size, device, grammars)
    runner = ModelRunner(model, attention, sampler, group, adapter_registry.adapter_routing, device=device)
    make_passing_cache = partial(make_cache, model, 16, dtype=dtype, device=device, cache_type=TransientKVCache)
    embedder = DecoderEmbedder(model, attention, pooling, adapter_registry.adapter_routing,
                               make_cache=make_passing_cache, device=device)
    return LoadedDecoder(config.model, model, attention, runner, embedder, group, device, dtype, inexact_reason,
                         grammars, adapter_registry, context.num_sharing_shards, config.memory_fraction,
                         partial(context.compute_adapter_budget, config.adapter_memory_fraction), config.cuda_graphs)


def prepare_loading(config: ShardConfig, model_config: ModelConfig) -> LoadContext:
    """Set up device and group; return when all ranks have joined. Raises ValueError if the weights would not fit."""
    num_gpus, folder = torch.cuda.device_count(), Path(config.model)
    device = choose_device(config.device, config.rank, num_gpus)
    set_up_device(device, config)
    group = join_group(config.rank, config.world_size,
                       choose_dist_backend(config.dist_backend, device.type, config.world_size, num_gpus),
                       config.meeting_point)
    probe_cache: ProbeCache = FileProbeCache(Path(config.memory)) if config.memory else NoProbeCache()
    dtype = choose_model_dtype(config, model_config.dtype, device, group, probe_cache)
    num_sharing_shards = count_ranks_on_gpu(group.rank, group.size, num_gpus) if device.type == "cuda" else group.size
    check_weight_memory(estimate_weight_bytes(folder, model_config, config.quantize, dtype), device, group,
                        num_sharing_shards)
    return LoadContext(device, group, dtype, probe_cache, AdapterRegistry(dtype, device, adaptable=config.adaptable),
                       num_sharing_shards)


def set_up_device(device: torch.device, config: ShardConfig) -> None:
    if device.type == "cpu":
        torch.set_num_threads(choose_num_threads(config.threads, count_usable_cores(), config.world_size))
        return
    if config.exact:
        disable_split_k()
    torch.cuda.set_device(device)
    if not has_triton():
        logger.warning("the GPU computes in plain torch, and slowly: triton, or gcc or clang, is not there")


def estimate_weight_bytes(folder: Path, model_config: ModelConfig, quantize: str, dtype: torch.dtype) -> int:
    """Return the approximate bytes of the weights of all ranks. With quantised weights it is the size of the files:
    too little if they are dequantised at load, too much if they are quantised at load."""
    stored_bytes = count_weight_bytes(folder)
    if model_config.quantization is not None or quantize:
        return stored_bytes
    return stored_bytes * dtype.itemsize // model_config.dtype.itemsize


def check_weight_memory(needed_bytes: int, device: torch.device, group: RankGroup, num_sharing_shards: int) -> None:
    """Check that weights of `needed_bytes` bytes on all ranks fit. Every rank measures before any of them begins to
    read."""
    if device.type == "cuda":
        available = AvailableMemory(read_gpu_memory(device.index)[0], "that the GPU has left")
        needed_bytes = needed_bytes * num_sharing_shards // group.size
    else:
        available = read_host_memory()
    min_available = group.all_reduce_min(available.bytes)
    check_weights_fit(needed_bytes, replace(available, bytes=min_available), num_sharing_shards)


def choose_model_dtype(config: ShardConfig, checkpoint_dtype: torch.dtype, device: torch.device, group: RankGroup,
                       probe_cache: ProbeCache) -> torch.dtype:
    key = make_probe_key({"asked": "the faster number type"})
    find_fastest = partial(agree_on_dtype, group, probe_cache, key,
                           partial(measure_fastest_dtype, can_pack, make_packed_matmul))
    choice = choose_dtype(config.dtype, checkpoint_dtype, device.type, find_fastest)
    if choice.user_note:
        logger.info("%s", choice.user_note)
    return choice.dtype


def load_from_weights(config: ShardConfig, context: LoadContext, model_config: AnyModelConfig,
                      make_model: Callable[[AnyModelConfig, CheckpointReader, RankGroup], AnyModel],
                      on_progress: OnProgress) -> AnyModel:
    """Return the model that `make_model` makes of the weights."""
    folder = Path(config.model)
    with CheckpointReader(folder, context.dtype, context.device, model_config.quantization, config.quantize,
                          lora_targets=context.adapter_registry.lora_targets,
                          on_progress=partial(on_progress, LOAD_PHASE)) as weights:
        model = make_model(model_config, weights, context.group)
        check_all_weights_used(weights, folder, model_config)
    logger.info("loaded %s in %s on %s", model_config.architecture, dtype_name(context.dtype), context.device)
    if weights.quantization_summary:
        logger.info("%s", weights.quantization_summary)
    return model


def check_all_weights_used(weights: CheckpointReader, folder: Path, config: ModelConfig) -> None:
    if unclaimed := weights.list_unclaimed_names():
        raise ValueError(f"{folder}: {config.architecture} has no use for {', '.join(unclaimed[:3])}"
                         f"{' and others' if len(unclaimed) > 3 else ''}; is config.json the one of this model?")


def make_cache(model: LanguageModel, block_size: int, num_blocks: int, dtype: torch.dtype,
               device: torch.device, *, cache_type: type[KVCache] = KVCache) -> KVCache:
    return cache_type(model.num_layers, model.num_kv_heads, model.head_dim, block_size=block_size,
                      num_blocks=num_blocks, dtype=dtype, device=device)


def find_inexact_reason(find_difference: Callable[[], str], group: RankGroup, probe_cache: ProbeCache, key: str, *,
                        is_required: bool) -> str:
    """Return why this model on this machine is not exact, or an empty string; cached if possible. Either all ranks run
    the gate or none does, and a difference on one counts for all. Raises ValueError if not exact but `is_required`.
    docs/exactness.md, "How it is checked", tells more."""
    cached = probe_cache.get(key)
    if group.all_reduce_min(int(cached is not None)):
        assert cached is not None
        difference = cached
    else:
        difference = find_difference()
        if not group.all_reduce_min(int(not difference)):
            difference = difference or "another shard found a difference"
        probe_cache.put(key, difference)
    if difference and is_required:
        raise ValueError(f"--exact cannot be kept here: {difference}")
    if difference:
        logger.warning("answers may depend on what else is served at the same time: %s", difference)
    return difference
