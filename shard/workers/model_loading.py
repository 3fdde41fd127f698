"""Loading of a model from settings: only here device, number type, ranks, weights and attention are put together.

Every user error is a ValueError.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from shard.adapters.loaded_adapters import LoadedAdapters
from shard.attention.backend import (
    AttentionBackend,
    AttentionOptions,
    CapturableAttentionBackend,
    choose_attention_backend,
    make_attention_backend,
)
from shard.attention.kv_cache import KVCache, TransientKVCache
from shard.attention.native import can_use_native_attention
from shard.checkpoint.reader import CheckpointReader, count_weight_bytes
from shard.config import ShardConfig
from shard.hardware.cache_budget import (
    AvailableMemory,
    CacheBudget,
    check_weights_fit,
    compute_gpu_cache_budget,
    compute_host_cache_budget,
    is_out_of_memory,
    read_gpu_memory,
    read_host_memory,
)
from shard.hardware.cgroups import count_usable_cores
from shard.hardware.device_setup import (
    choose_device,
    choose_num_threads,
    count_ranks_on_gpu,
    disable_split_k,
    get_device_name,
)
from shard.hardware.dtype import agree_on_dtype, choose_dtype, dtype_name, measure_fastest_dtype
from shard.hardware.probe_cache import ProbeCache, make_probe_key
from shard.models.config import AnyConfig, ModelConfig
from shard.models.decoder import BaseLanguageModel
from shard.models.encoder import EncoderConfig
from shard.models.hf_fallback.loader import FallbackConfig
from shard.models.registry import load_encoder, load_model, load_model_config
from shard.native.compiler import library_file_name
from shard.native.library import ISA_VARIABLE, describe_loaded_library, load_library_or_reason, log_use_of_kernels
from shard.ops.native_linear import bytes_per_stored_weight
from shard.ops.triton_support import has_triton
from shard.ops.unquantized_linear import can_pack, make_matmul_benchmark
from shard.parallel.group import RankGroup, Rendezvous, choose_dist_backend, join_group
from shard.quantization.quantized_weight_reader import INT4_ON_LOAD
from shard.runner.batch_invariance_check import (
    QUICK_GATE_SIZES,
    THOROUGH_GATE_SIZES,
    ExactnessGate,
    find_encoder_difference,
)
from shard.runner.cpu_graphs import make_cpu_graph_runner
from shard.runner.cuda_graphs import CudaGraphRunner, make_capture_function
from shard.runner.model_runner import ModelRunner
from shard.runner.pooling import load_pooling
from shard.runner.pooling_runners import DecoderEmbedder, EncoderRunner
from shard.sampling.grammar import GrammarRegistry, make_grammar_registry
from shard.sampling.sampler import Sampler
from shard.state.block_usage import MIN_BLOCK_SIZE
from shard.telemetry.startup_progress import CHECK_PHASE, LOAD_PHASE, OnProgress, ignore_progress
from shard.tls_credentials import load_credentials
from shard.workers.weight_size import estimate_weight_bytes

logger = logging.getLogger(__name__)

AnyModel = TypeVar("AnyModel")


@dataclass(frozen=True)
class LoadContext:
    """Settings, device and groups that are set up before weights are read, and kept once the model is loaded."""

    settings: ShardConfig
    device: torch.device
    group: RankGroup
    dtype: torch.dtype
    probe_cache: ProbeCache
    loaded_adapters: LoadedAdapters
    num_sharing_shards: int  # shards that take what they need from the same memory
    quantization: str  # of the weights, for people; empty: none

    @property
    def name(self) -> str:
        return self.settings.model_label or self.settings.model

    def compute_adapter_budget(self) -> int:
        """Return the bytes for this shard's adapters."""
        if not self.loaded_adapters.supports_adapters:
            return 0
        total_bytes = (read_host_memory().bytes if self.device.type != "cuda"
                       else read_gpu_memory(self.device.index)[1])
        return int(total_bytes * self.settings.adapter_memory_fraction) // self.num_sharing_shards

    def load_from_weights(self, model_config: AnyConfig, on_progress: OnProgress,
                          make_model: Callable[[AnyConfig, CheckpointReader, RankGroup], AnyModel]) -> AnyModel:
        """Return the model that `make_model` makes of the weights."""
        folder = Path(self.settings.model)
        with CheckpointReader(folder, self.dtype, self.device, model_config.quantization, self.settings.quantize,
                              lora_targets=self.loaded_adapters.lora_targets,
                              on_progress=partial(on_progress, LOAD_PHASE)) as weights:
            model = make_model(model_config, weights, self.group)
            if unclaimed := weights.list_unclaimed_names():
                raise ValueError(f"{folder}: {model_config.architecture} has no use for {', '.join(unclaimed[:3])}"
                                 f"{' and others' if len(unclaimed) > 3 else ''}; is config.json the one of this "
                                 "model?")
        logger.info("loaded %s in %s on %s", model_config.architecture, dtype_name(self.dtype), self.device)
        log_use_of_kernels()
        if weights.quantization_summary:
            logger.info("%s", weights.quantization_summary)
        if self.settings.quantize:
            quantized, unquantized = (
                estimate_weight_bytes(folder, model_config, self.dtype, self.device, quantize) / 2**20
                for quantize in (self.settings.quantize, ""))
            logger.info("all weights take about %.1f MiB, without --quantize %.1f MiB", quantized, unquantized)
        return model

    def explain_inexactness(self, model_config: ModelConfig, on_progress: OnProgress,
                            find_difference: Callable[[], str], **subject: str) -> str:
        """Return why the loaded model is not exact here, or an empty string. `subject`: what else the result depends
        on."""
        on_progress(CHECK_PHASE, 0, 0)
        return find_inexact_reason(lambda: find_difference() or self.loaded_adapters.find_batch_dependence(),
                                   self.group, self.probe_cache, self.make_probe_key(model_config, **subject),
                                   is_required=self.settings.exact)

    def make_probe_key(self, model_config: ModelConfig, **subject: object) -> str:
        """Return the key of something found out about this model, loaded as it is on this machine, and `subject`."""
        settings = self.settings
        return make_probe_key(asdict(model_config) | subject | {
            "dtype": self.dtype, "ranks": self.group.size, "device": get_device_name(self.device),
            "kernels": describe_loaded_library(), "quantize": settings.quantize,
            "adaptable": settings.adaptable, "exact": settings.exact})


@dataclass(frozen=True)
class LoadedDecoder(LoadContext):
    """A model that generates with all that runs it."""

    model: BaseLanguageModel
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

    def capture_decode_steps(self, cache: KVCache, max_rows: int, max_sequence_length: int) -> CudaGraphRunner | None:
        """Capture decode steps for this cache. Return None unless captures are enabled, the whole model is on one GPU,
        and model and attention allow them. Raises ValueError if a capture fails for another reason than memory."""
        if (not self.settings.cuda_graphs or self.device.type != "cuda" or self.group.size > 1
            or not self.model.is_capturable or not isinstance(self.attention, CapturableAttentionBackend)):
            return None
        self.loaded_adapters.adapter_routing.set_rows(())  # not those of an earlier step
        try:
            return CudaGraphRunner(self.model, self.attention, cache, make_capture_function(self.device),
                                   max_rows=max_rows, max_sequence_length=max_sequence_length,
                                   adapter_routing=self.loaded_adapters.capturable_routing)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ValueError(f"steps cannot be captured as CUDA graphs here ({error.__context__ or error}); "
                             "--no-cuda-graphs launches them piece by piece") from error

    def bytes_per_block(self, block_size: int) -> int:
        model = self.model
        return KVCache.bytes_per_block(model.num_layers, model.num_kv_heads, model.head_dim, block_size, self.dtype)

    def compute_cache_budget(self) -> CacheBudget:
        """Return the room for the cache; call this after the largest step has run."""
        if self.device.type != "cuda":
            return compute_host_cache_budget(read_host_memory(), self.settings.memory_fraction, self.num_sharing_shards)
        budget = compute_gpu_cache_budget(*read_gpu_memory(self.device.index), self.settings.memory_fraction,
                                          self.num_sharing_shards)
        return replace(budget, bytes=max(0, budget.bytes - self.compute_adapter_budget()))


@dataclass(frozen=True)
class LoadedEncoder(LoadContext):
    """An encoder with all that runs it."""

    config: EncoderConfig
    runner: EncoderRunner
    inexact_reason: str  # why answers may depend on the rest of the batch, or empty


def load_decoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedDecoder:
    folder = Path(config.model)
    model_config = load_model_config(folder)
    context = make_load_context(config, model_config)
    device, group, dtype = context.device, context.group, context.dtype
    num_heads_per_kv_head = model_config.num_heads // model_config.num_kv_heads
    backend = choose_attention_backend(
        config.attention, device.type,
        is_native_possible=can_use_native_attention(dtype, num_heads_per_kv_head, model_config.head_dim))
    pooling = load_pooling(folder, "last", model_config.hidden_size, config.embedding_dim)
    model = context.load_from_weights(model_config, on_progress, load_model)
    attention = make_attention_backend(backend, model_config.num_heads // group.size, model.num_kv_heads,
                                       model_config.head_dim,
                                       AttentionOptions(model_config.attention_scale, model_config.attention_softcap,
                                                        model_config.sliding_windows, config.exact))
    gate_model = model.copy_first_layers(model.num_representative_layers)
    gate = ExactnessGate(gate_model, model_config, attention,
                         partial(make_cache, gate_model, MIN_BLOCK_SIZE, dtype=dtype, device=device), device,
                         sizes=THOROUGH_GATE_SIZES if config.exact and device.type == "cuda" else QUICK_GATE_SIZES)
    inexact_reason = context.explain_inexactness(model_config, on_progress, gate.find_difference, attention=backend)
    grammars = make_grammar_registry(folder, model_config.vocabulary_size) if group.rank == 0 else None
    sampler = Sampler(model_config.vocabulary_size, device, grammars)
    runner = ModelRunner(model, attention, sampler, group, context.loaded_adapters.adapter_routing, device,
                         cpu_graph_runner=make_cpu_graph_runner(model, attention, group.size,
                                                                context.loaded_adapters.recordable_routing))
    embedder = DecoderEmbedder(runner, pooling, partial(make_cache, model, MIN_BLOCK_SIZE, dtype=dtype, device=device,
                                                        cache_type=TransientKVCache))
    return LoadedDecoder(**vars(context), model=model, attention=attention, runner=runner, embedder=embedder,
                         inexact_reason=inexact_reason, grammars=grammars)


def make_cache(model: BaseLanguageModel, block_size: int, num_blocks: int, dtype: torch.dtype,
               device: torch.device, *, cache_type: type[KVCache] = KVCache) -> KVCache:
    return cache_type(model.num_layers, model.num_kv_heads, model.head_dim, block_size=block_size,
                      num_blocks=num_blocks, dtype=dtype, device=device)


def load_encoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedEncoder:
    folder = Path(config.model)
    model_config = load_model_config(folder)
    assert isinstance(model_config, EncoderConfig)
    pooling = load_pooling(folder, "mean", model_config.hidden_size, config.embedding_dim)
    context = make_load_context(config, model_config)
    model = context.load_from_weights(model_config, on_progress, load_encoder)
    inexact_reason = context.explain_inexactness(model_config, on_progress,
                                                 partial(find_encoder_difference, model.copy_first_layers(1),
                                                         context.device))
    runner = EncoderRunner(model, pooling, context.loaded_adapters.adapter_routing, context.device)
    return LoadedEncoder(**vars(context), config=model_config, runner=runner, inexact_reason=inexact_reason)


def describe_quantization(settings: ShardConfig, model_config: ModelConfig) -> str:
    """Return how the weights are quantized, for people; empty if they are not."""
    if settings.quantize:
        return settings.quantize
    return "" if model_config.quantization is None else model_config.quantization.description


def check_quantization_on_load(quantize: str, device_type: str) -> None:
    """Raise ValueError if weights cannot be quantized so (--quantize) on this machine."""
    if quantize == INT4_ON_LOAD and device_type != "cpu":
        raise ValueError("--quantize int4 is for --device cpu; use --quantize int8")
    if quantize == INT4_ON_LOAD and isinstance(library := load_library_or_reason(), str):
        raise ValueError(f"--quantize int4 needs compiled kernels: {library}; or use --quantize int8")


def make_load_context(config: ShardConfig, model_config: ModelConfig) -> LoadContext:
    """Set up device and group; return when all ranks have joined. Raises ValueError if the weights would not fit."""
    if config.quantize and isinstance(model_config, FallbackConfig):
        raise ValueError(f"--quantize {config.quantize} is for models that weft has code of its own for, and "
                         f"{model_config.architecture} runs through transformers; leave it out")
    num_gpus = torch.cuda.device_count()
    device = choose_device(config.device, config.machine_rank, num_gpus)
    set_up_device(device, config)
    check_quantization_on_load(config.quantize, device.type)
    rendezvous = Rendezvous(config.meeting_point, config.host_address,
                            load_credentials(config.credentials) if config.credentials else None)
    group = join_group(config.rank, config.world_size,
                       choose_dist_backend(config.dist_backend, device.type, config.machine_world_size, num_gpus,
                                           spans_hosts=rendezvous.spans_hosts), rendezvous)
    probe_cache = ProbeCache(Path(config.memory) if config.memory else None)
    key = make_probe_key({"asked": "the faster number type", "kernels": library_file_name(), "isa": config.cpu_isa})
    find_fastest = partial(agree_on_dtype, group, probe_cache, key,
                           partial(measure_fastest_dtype, can_pack, make_matmul_benchmark))
    dtype, user_note = choose_dtype(config.dtype, model_config.dtype, device.type, find_fastest)
    if user_note:
        logger.info("%s", user_note)
    num_sharing_shards = (count_ranks_on_gpu(config.machine_rank, config.machine_world_size, num_gpus)
                          if device.type == "cuda" else config.machine_world_size)
    # of all ranks; with quantized weights too little if they are dequantized at load, too much if quantized at load
    weight_bytes = count_weight_bytes(Path(config.model))
    if model_config.quantization is None and not config.quantize:
        weight_bytes = (weight_bytes * bytes_per_stored_weight(model_config.dtype, dtype, device)
                        // model_config.dtype.itemsize)
    check_weight_memory(weight_bytes, device, group, num_sharing_shards)
    return LoadContext(config, device, group, dtype, probe_cache,
                       LoadedAdapters(dtype, device, adaptable=config.adaptable), num_sharing_shards,
                       describe_quantization(config, model_config))


def set_up_device(device: torch.device, config: ShardConfig) -> None:
    if device.type == "cpu":
        if config.cpu_isa != "auto":
            os.environ[ISA_VARIABLE] = config.cpu_isa
        torch.set_num_threads(choose_num_threads(config.threads, count_usable_cores(), config.machine_world_size))
        return
    if config.exact:
        disable_split_k()
    torch.cuda.set_device(device)
    if not has_triton():
        logger.warning("the GPU computes in plain torch, and slowly: triton, or gcc or clang, is not there")


def check_weight_memory(needed_bytes: int, device: torch.device, group: RankGroup, num_sharing_shards: int) -> None:
    """Check that weights of `needed_bytes` bytes on all ranks fit. Every rank measures before any of them begins to
    read."""
    if device.type == "cuda":
        available = AvailableMemory(read_gpu_memory(device.index)[0], "that the GPU has left")
    else:
        available = read_host_memory()
    needed_bytes = needed_bytes * num_sharing_shards // group.size
    min_available = group.all_reduce_min(available.bytes)
    check_weights_fit(needed_bytes, replace(available, bytes=min_available), num_sharing_shards)


def find_inexact_reason(find_difference: Callable[[], str], group: RankGroup, probe_cache: ProbeCache, key: str, *,
                        is_required: bool) -> str:
    """Return why this model on this machine is not exact, or an empty string; cached if possible. Either all ranks run
    the gate or none does, and a difference on one counts for all. Raises ValueError if not exact but `is_required`.
    docs/concepts/exactness.md, "How it is checked", describes the gate."""
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
