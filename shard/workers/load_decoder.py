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

from shard.adapters.registry import Wardrobe
from shard.attention.backend import Attention, Framing, choose_attention, make_attention
from shard.attention.kv_cache import Cache, PassingCache
from shard.attention.variant import Variant
from shard.checkpoint.reader import Weights, weight_bytes
from shard.config import ShardConfig
from shard.host.cgroups import count_cores
from shard.host.cublas import add_up_in_one_order
from shard.host.device import choose_device, count_sharing, count_threads, kind_of
from shard.host.dtype import Memory, choose_dtype, find_quickest, name, packed_product, settled
from shard.host.memory import (
    Available,
    Room,
    adapter_room,
    check_weights,
    gpu_room,
    host_room,
    is_exhaustion,
    read_gpu,
    read_host,
)
from shard.host.probe_cache import Forgotten, Kept, fingerprint
from shard.models.config import ModelConfig
from shard.models.decoder import LanguageModel
from shard.models.read_config import read_config
from shard.models.registry import load_model
from shard.ops.linear import can_pack
from shard.ops.triton_support import has_triton
from shard.parallel.group import Group, choose_backend, join
from shard.runner.cuda_graphs import Extent, Replays, cuda_capture
from shard.runner.decoder_embedder import Embedder
from shard.runner.exactness import BRIEF, THOROUGH, Gate
from shard.runner.pooling import read_pooling
from shard.runner.runner import Runner
from shard.sampling.grammar import Grammars, read_grammars
from shard.sampling.sampler import Sampler
from shard.telemetry.startup_progress import CHECK, LOAD, OnProgress, untold

Described = TypeVar("Described", bound=ModelConfig)
Model = TypeVar("Model")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    name: str
    model: LanguageModel
    attention: Attention
    runner: Runner
    embedder: Embedder
    group: Group
    device: torch.device
    dtype: torch.dtype
    inexact: str  # why answers may depend on the rest of the batch, or empty
    grammars: Grammars | None  # on rank 0, if the model's tokenizer can be used
    wardrobe: Wardrobe
    num_sharing: int  # shards that take their cache from the same memory
    memory_fraction: float | None
    adapter_room: Callable[[], int]  # bytes for adapters
    cuda_graphs: bool

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def cache(self, block_size: int, num_blocks: int) -> Cache:
        return make_cache(self.model, block_size, num_blocks, self.dtype, self.device)

    def replays(self, cache: Cache, extent: Extent) -> Replays | None:
        """Capture decode steps for this cache. Return None unless captures are enabled, the whole model is on one GPU,
        and model and attention allow them. Raises ValueError if a capture fails for another reason than memory."""
        if (not self.cuda_graphs or self.device.type != "cuda" or self.group.size > 1 or not self.model.steady
                or not isinstance(self.attention, Framing)):
            return None
        try:
            return Replays(self.model, self.attention, cache, extent, cuda_capture(self.device),
                           bearers=self.wardrobe.steady)
        except RuntimeError as error:
            if is_exhaustion(error):
                raise
            raise ValueError(f"steps cannot be captured as CUDA graphs here ({error.__context__ or error}); "
                             "--no-cuda-graphs launches them piece by piece") from error

    def block_bytes(self, block_size: int) -> int:
        model = self.model
        return Cache.bytes_per_block(model.num_layers, model.num_kv_heads, model.head_dim, block_size, self.dtype)

    def room(self) -> Room:
        """Return the room for the cache; call this after the largest step has run."""
        if self.device.type != "cuda":
            return host_room(read_host(), self.memory_fraction, self.num_sharing)
        room = gpu_room(*read_gpu(self.device.index), self.memory_fraction, self.num_sharing)
        return replace(room, bytes=max(0, room.bytes - self.adapter_room()))


@dataclass(frozen=True, slots=True)
class Footing:
    """Context of loading that is set up before weights are read, whatever the model."""

    device: torch.device
    group: Group
    dtype: torch.dtype
    memory: Memory
    wardrobe: Wardrobe
    num_sharing: int  # shards that take what they need from the same memory

    def adapter_room(self, fraction: float) -> int:
        """Return the bytes for this shard's adapters."""
        if not self.wardrobe.is_open:
            return 0
        if self.device.type != "cuda":
            return adapter_room(read_host(), fraction, self.num_sharing)
        whole = Available(read_gpu(self.device.index)[1], "that the GPU has")
        return adapter_room(whole, fraction, self.num_sharing)


def load(config: ShardConfig, on_progress: OnProgress = untold) -> Loaded:
    described = read_config(Path(config.model))
    footing = prepare(config, described)
    device, group, dtype, wardrobe = footing.device, footing.group, footing.dtype, footing.wardrobe
    backend = choose_attention(config.attention, device.type)
    pooling = read_pooling(Path(config.model), "last", described.hidden_size, config.embedding_dim)
    model = read_weights(config, footing, described, load_model, on_progress)
    attention = make_attention(backend, described.num_heads // group.size, model.num_kv_heads, described.head_dim,
                               Variant(described.scale, described.softcap, described.windows))
    shape = asdict(described) | {"dtype": dtype, "attention": backend, "ranks": group.size, "device": kind_of(device),
                                 "quantize": config.quantize, "adaptable": config.adaptable, "exact": config.exact}
    varied = model.cut(model.num_varied)
    gate = Gate(varied, described, attention, partial(make_cache, varied, 16, dtype=dtype, device=device), device,
                look=THOROUGH if config.exact and device.type == "cuda" else BRIEF)
    on_progress(CHECK, 0, 0)
    inexact = examine(lambda: gate.verdict() or wardrobe.verdict(), group, footing.memory, fingerprint(shape),
                      demanded=config.exact)
    grammars = read_grammars(Path(config.model), described.vocabulary_size) if group.rank == 0 else None
    sampler = Sampler(described.vocabulary_size, device, grammars)
    runner = Runner(model, attention, sampler, group, wardrobe.bearers, device=device)
    passing = partial(make_cache, model, 16, dtype=dtype, device=device, kind=PassingCache)
    embedder = Embedder(model, attention, pooling, wardrobe.bearers, make_cache=passing, device=device)
    return Loaded(config.model, model, attention, runner, embedder, group, device, dtype, inexact, grammars, wardrobe,
                  footing.num_sharing, config.memory_fraction,
                  partial(footing.adapter_room, config.adapter_memory_fraction), config.cuda_graphs)


def prepare(config: ShardConfig, described: ModelConfig) -> Footing:
    """Set up device and group; return when all ranks have joined. Raises ValueError if the weights would not fit."""
    num_gpus, folder = torch.cuda.device_count(), Path(config.model)
    device = choose_device(config.device, config.rank, num_gpus)
    compute_on(device, config)
    group = join(config.rank, config.world_size,
                 choose_backend(config.dist_backend, device.type, config.world_size, num_gpus), config.meeting_point)
    memory: Memory = Kept(Path(config.memory)) if config.memory else Forgotten()
    dtype = chosen_dtype(config, described.dtype, device, group, memory)
    num_sharing = count_sharing(group.rank, group.size, num_gpus) if device.type == "cuda" else group.size
    check_room(num_bytes(folder, described, config.quantize, dtype), device, group, num_sharing)
    return Footing(device, group, dtype, memory, Wardrobe(dtype, device, adaptable=config.adaptable), num_sharing)


def compute_on(device: torch.device, config: ShardConfig) -> None:
    if device.type == "cpu":
        torch.set_num_threads(count_threads(config.threads, count_cores(), config.world_size))
        return
    if config.exact:
        add_up_in_one_order()
    torch.cuda.set_device(device)
    if not has_triton():
        log.warning("the GPU computes in plain torch, and slowly: triton, or gcc or clang, is not there")


def num_bytes(folder: Path, described: ModelConfig, quantize: str, dtype: torch.dtype) -> int:
    """Return the approximate bytes of the weights of all ranks. With quantised weights it is the size of the files:
    too little if they are dequantised at load, too much if they are quantised at load."""
    stored = weight_bytes(folder)
    if described.quantization is not None or quantize:
        return stored
    return stored * dtype.itemsize // described.dtype.itemsize


def check_room(needed: int, device: torch.device, group: Group, num_sharing: int) -> None:
    """Check that weights of `needed` bytes on all ranks fit. Every rank measures before any of them begins to read."""
    if device.type == "cuda":
        available = Available(read_gpu(device.index)[0], "that the GPU has left")
        needed = needed * num_sharing // group.size
    else:
        available = read_host()
    least = group.minimum(available.bytes)
    check_weights(needed, replace(available, bytes=least), num_sharing)


def chosen_dtype(config: ShardConfig, stored: torch.dtype, device: torch.device, group: Group,
                 memory: Memory) -> torch.dtype:
    key = fingerprint({"asked": "the faster number type"})
    find = partial(settled, group, memory, key, partial(find_quickest, can_pack, packed_product))
    precision = choose_dtype(config.dtype, stored, device.type, find)
    if precision.note:
        log.info("%s", precision.note)
    return precision.dtype


def read_weights(config: ShardConfig, footing: Footing, described: Described,
                 read: Callable[[Described, Weights, Group], Model], on_progress: OnProgress) -> Model:
    """Return the model that `read` makes of the weights."""
    folder = Path(config.model)
    with Weights(folder, footing.dtype, footing.device, described.quantization, config.quantize,
                 sites=footing.wardrobe.sites, on_read=partial(on_progress, LOAD)) as weights:
        model = read(described, weights, footing.group)
        check_claimed(weights, folder, described)
    log.info("loaded %s in %s on %s", described.architecture, name(footing.dtype), footing.device)
    if weights.quantization:
        log.info("%s", weights.quantization)
    return model


def check_claimed(weights: Weights, folder: Path, config: ModelConfig) -> None:
    if unclaimed := weights.unclaimed():
        raise ValueError(f"{folder}: {config.architecture} has no use for {', '.join(unclaimed[:3])}"
                         f"{' and others' if len(unclaimed) > 3 else ''}; is config.json the one of this model?")


def make_cache(model: LanguageModel, block_size: int, num_blocks: int, dtype: torch.dtype,
               device: torch.device, *, kind: type[Cache] = Cache) -> Cache:
    return kind(model.num_layers, model.num_kv_heads, model.head_dim, block_size=block_size, num_blocks=num_blocks,
                dtype=dtype, device=device)


def examine(verdict: Callable[[], str], group: Group, memory: Memory, key: str, *, demanded: bool) -> str:
    """Return why this model on this machine is not exact, or an empty string; cached if possible. Either all ranks run
    the gate or none does, and a difference on one counts for all. Raises ValueError if not exact but `demanded`."""
    known = memory.get(key)
    if group.minimum(int(known is not None)):
        assert known is not None
        found = known
    else:
        found = verdict()
        if not group.minimum(int(not found)):
            found = found or "another shard found a difference"
        memory.put(key, found)
    if found and demanded:
        raise ValueError(f"--exact cannot be kept here: {found}")
    if found:
        log.warning("answers may depend on what else is served at the same time: %s", found)
    return found
