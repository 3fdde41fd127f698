"""Steps of loading that decoders and encoders share: device, number type, memory check, weights, exactness check."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from shard.adapters.registry import AdapterRegistry
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
from shard.hardware.memory_budget import (
    AvailableMemory,
    check_weights_fit,
    compute_adapter_budget,
    read_gpu_memory,
    read_host_memory,
)
from shard.hardware.probe_cache import FileProbeCache, NoProbeCache, make_probe_key
from shard.models.config import AnyConfig, ModelConfig
from shard.ops.linear import can_pack
from shard.ops.triton_support import has_triton
from shard.parallel.group import RankGroup, choose_dist_backend, join_group
from shard.telemetry.startup_progress import CHECK_PHASE, LOAD_PHASE, OnProgress

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
    adapter_registry: AdapterRegistry
    num_sharing_shards: int  # shards that take what they need from the same memory

    @property
    def name(self) -> str:
        return self.settings.model

    def compute_adapter_budget(self) -> int:
        """Return the bytes for this shard's adapters."""
        if not self.adapter_registry.supports_adapters:
            return 0
        total = (read_host_memory() if self.device.type != "cuda"
                 else AvailableMemory(read_gpu_memory(self.device.index)[1], "that the GPU has"))
        return compute_adapter_budget(total, self.settings.adapter_memory_fraction, self.num_sharing_shards)

    def load_from_weights(self, model_config: AnyConfig, on_progress: OnProgress,
                          make_model: Callable[[AnyConfig, CheckpointReader, RankGroup], AnyModel]) -> AnyModel:
        """Return the model that `make_model` makes of the weights."""
        folder = Path(self.settings.model)
        with CheckpointReader(folder, self.dtype, self.device, model_config.quantization, self.settings.quantize,
                              lora_targets=self.adapter_registry.lora_targets,
                              on_progress=partial(on_progress, LOAD_PHASE)) as weights:
            model = make_model(model_config, weights, self.group)
            check_all_weights_used(weights, folder, model_config)
        logger.info("loaded %s in %s on %s", model_config.architecture, dtype_name(self.dtype), self.device)
        if weights.quantization_summary:
            logger.info("%s", weights.quantization_summary)
        return model

    def check_exactness(self, model_config: ModelConfig, on_progress: OnProgress, find_difference: Callable[[], str],
                        **subject: str) -> str:
        """Return why the loaded model is not exact here, or an empty string. `subject`: what else the result depends
        on."""
        on_progress(CHECK_PHASE, 0, 0)
        settings = self.settings
        key = make_probe_key(asdict(model_config) | subject | {
            "dtype": self.dtype, "ranks": self.group.size, "device": get_device_name(self.device),
            "quantize": settings.quantize, "adaptable": settings.adaptable, "exact": settings.exact})
        return find_inexact_reason(lambda: find_difference() or self.adapter_registry.find_batch_dependence(),
                                   self.group, self.probe_cache, key, is_required=settings.exact)


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
    return LoadContext(config, device, group, dtype, probe_cache,
                       AdapterRegistry(dtype, device, adaptable=config.adaptable), num_sharing_shards)


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


def check_all_weights_used(weights: CheckpointReader, folder: Path, config: ModelConfig) -> None:
    if unclaimed := weights.list_unclaimed_names():
        raise ValueError(f"{folder}: {config.architecture} has no use for {', '.join(unclaimed[:3])}"
                         f"{' and others' if len(unclaimed) > 3 else ''}; is config.json the one of this model?")


def find_inexact_reason(find_difference: Callable[[], str], group: RankGroup, probe_cache: ProbeCache, key: str, *,
                        is_required: bool) -> str:
    """Return why this model on this machine is not exact, or an empty string; cached if possible. Either all ranks run
    the gate or none does, and a difference on one counts for all. Raises ValueError if not exact but `is_required`.
    docs/exactness.md, "How it is checked", describes the gate."""
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
