"""Choice of the number type that a model computes with. On a CPU it is the faster one of bfloat16 and float32, unless
user or checkpoint decide. Another measurement may differ, and answers would have other bits then: so the first result
of rank 0 is kept."""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import torch

from shard.hardware.probe_cache import ProbeCache
from shard.parallel.group import RankGroup

DTYPE_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NUM_PROBE_ROUNDS = 5

MatmulsFunction = Callable[[], object]


class DtypeChoice(NamedTuple):
    """The chosen number type, and a note for the user if it is not the one requested."""

    dtype: torch.dtype
    user_note: str = ""


def choose_dtype(requested: str, checkpoint_dtype: torch.dtype, device: str,
                 find_fastest: Callable[[], torch.dtype]) -> DtypeChoice:
    """Choose the number type; `find_fastest` finds the faster type on this CPU and is called only if that matters."""
    dtype = checkpoint_dtype if requested == "auto" else DTYPE_BY_NAME[requested]
    if device != "cpu" or dtype is torch.float32 or requested == "bfloat16":
        return DtypeChoice(dtype)
    fastest = find_fastest()
    if dtype is torch.float16:
        return DtypeChoice(fastest, f"float16 is slow on CPUs; the model runs in {dtype_name(fastest)}")
    return DtypeChoice(fastest)


def measure_fastest_dtype(can_pack: Callable[[torch.dtype], bool],
                          make_matmuls: Callable[[torch.dtype], MatmulsFunction]) -> torch.dtype:
    """Return the faster of bfloat16 and float32 on this CPU; float32 if bfloat16 cannot be packed. `make_matmuls` makes
    a function that computes products to time."""
    if not can_pack(torch.bfloat16):
        return torch.float32
    matmuls = {dtype: make_matmuls(dtype) for dtype in (torch.bfloat16, torch.float32)}
    best_seconds = {dtype: float("inf") for dtype in matmuls}
    for _ in range(NUM_PROBE_ROUNDS):
        for dtype, compute in matmuls.items():
            started_at = perf_counter()
            compute()
            best_seconds[dtype] = min(best_seconds[dtype], perf_counter() - started_at)
    return min(best_seconds, key=lambda dtype: best_seconds[dtype])


def agree_on_dtype(group: RankGroup, probe_cache: ProbeCache, key: str,
                   find_fastest: Callable[[], torch.dtype]) -> torch.dtype:
    """Return on every rank the type that rank 0 has in its probe cache, or measures now."""
    names = list(DTYPE_BY_NAME)
    name_index = len(names)
    if group.rank == 0:
        name = probe_cache.get(key)
        if name not in DTYPE_BY_NAME:
            name = dtype_name(find_fastest())
            probe_cache.put(key, name)
        name_index = names.index(name)
    return DTYPE_BY_NAME[names[group.all_reduce_min(name_index)]]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
