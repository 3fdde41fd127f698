"""Choice of the number type that a model computes with, by the checkpoint's type and the device.

On a CPU it is the faster one of bfloat16 and float32, unless user or checkpoint decide. That is measured, so another
measurement may differ, and answers would have other bits then: so the first result of rank 0 is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch

from shard.parallel.group import Group

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
ROWS = 8
SHAPE = (16384, 1024)  # of the measured weight: larger than the private cache of a core
ROUNDS = 5

Product = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Precision:
    dtype: torch.dtype
    note: str = ""  # for users, is logged


class Memory(Protocol):
    """Store of short texts by key that outlives the process."""

    def get(self, key: str) -> str | None: ...
    def put(self, key: str, found: str) -> None: ...


def choose_dtype(asked: str, stored: torch.dtype, device: str, quickest: Callable[[], torch.dtype]) -> Precision:
    """Choose the number type; `quickest` finds the faster type on this CPU and is called only if that matters."""
    wanted = stored if asked == "auto" else DTYPES[asked]
    if device != "cpu" or wanted is torch.float32 or asked == "bfloat16":
        return Precision(wanted)
    found = quickest()
    if wanted is torch.float16:
        return Precision(found, f"float16 is slow on CPUs; the model runs in {name(found)}")
    return Precision(found)


def find_quickest(can_pack: Callable[[torch.dtype], bool], products: Callable[[torch.dtype], Product]) -> torch.dtype:
    """Return the faster of bfloat16 and float32 on this CPU; float32 if bfloat16 cannot be packed. `products` makes a
    product to time."""
    if not can_pack(torch.bfloat16):
        return torch.float32
    candidates = {dtype: products(dtype) for dtype in (torch.bfloat16, torch.float32)}
    best = {dtype: float("inf") for dtype in candidates}
    for _ in range(ROUNDS):
        for dtype, product in candidates.items():
            best[dtype] = min(best[dtype], seconds(product))
    return min(best, key=lambda dtype: best[dtype])


def seconds(product: Product) -> float:
    began = perf_counter()
    product()
    return perf_counter() - began


def packed_product(dtype: torch.dtype) -> Product:
    """Return a product of a few rows, as in a decode step."""
    packed = torch.ops.mkldnn._reorder_linear_weight(torch.full(SHAPE, 0.01, dtype=dtype))
    rows = torch.full((ROWS, SHAPE[1]), 0.01, dtype=dtype)
    return lambda: torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")


def settled(group: Group, memory: Memory, key: str, find: Callable[[], torch.dtype]) -> torch.dtype:
    """Return on every rank the type that rank 0 has in its memory, or finds now."""
    kinds = list(DTYPES)
    found = kinds.index(recalled(memory, key, find)) if group.rank == 0 else len(kinds)
    return DTYPES[kinds[group.minimum(found)]]


def recalled(memory: Memory, key: str, find: Callable[[], torch.dtype]) -> str:
    known = memory.get(key)
    if known not in DTYPES:
        known = name(find())
        memory.put(key, known)
    return known


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
