"""What a card can do, measured, and how long a step would take on it if nothing else took time.

A product takes as long as reading its weights or as calculating, whichever is more; cache and logits are read beside.
Knows nothing of how steps are run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import torch

from benchmarks.checkpoint import tensors
from benchmarks.drawn import done, timed

WIDTH = {"cuda": 8192, "cpu": 512}  # of the matrices whose products tell a rate
COPIED = {"cuda": 2**32, "cpu": 2**26}  # bytes
TIMES, AT_ONCE = 7, 10  # so often, so many without waiting


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a card."""

    bytes: float  # a second, reading and writing both counted
    operations: float  # a second, in products of large matrices

    def told(self) -> str:
        return f"copies {self.bytes / 1e12:.3g} TB/s, products {self.operations / 1e12:.3g} TFLOP/s"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model, in numbers of `itemsize` bytes."""

    matrices: tuple[int, ...]  # weights of every product in its layers
    head: int
    vocabulary: int
    layers: int
    queries: int  # values of all heads together
    cached: int  # values that a token leaves in the cache
    itemsize: int

    def decode_seconds(self, rates: Rates, batch: int, context: int) -> float:
        products = sum(max(self.itemsize * weights / rates.bytes, 2 * weights * batch / rates.operations)
                       for weights in (*self.matrices, self.head))
        moved = batch * (context * self.cached + 2 * self.vocabulary)  # logits are written and read
        return products + self.itemsize * moved / rates.bytes

    def prompt_operations(self, length: int) -> float:
        """Of one prompt: only its last token gets logits, and half of the pairs of tokens see each other."""
        attention = 2 * self.layers * self.queries * length * (length + 1)
        return 2 * (sum(self.matrices) * length + self.head) + attention


def sizes(config: dict[str, Any], dtype: torch.dtype) -> Sizes:
    """Of one of the Llama and Qwen shapes."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim", hidden // heads)
    matrices = tuple(prod(shape) for name, shape in tensors(config) if name.endswith("_proj.weight"))
    layers = config["num_hidden_layers"]
    return Sizes(matrices, config["vocab_size"] * hidden, config["vocab_size"], layers, heads * head_dim,
                 2 * layers * config["num_key_value_heads"] * head_dim, dtype.itemsize)


@torch.inference_mode()
def rates(device: str, dtype: str) -> Rates:
    """`dtype` as in `weft serve`; auto: bfloat16."""
    kind = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    width, count = WIDTH[device], COPIED[device] // kind.itemsize
    source, target = (torch.zeros(count, dtype=kind, device=device) for _ in range(2))
    left, right = (torch.randn(width, width, dtype=kind, device=device) for _ in range(2))
    product = torch.empty_like(left)
    copied = median(seconds_of(lambda: target.copy_(source)) for _ in range(TIMES))
    multiplied = median(seconds_of(lambda: torch.mm(left, right, out=product)) for _ in range(TIMES))
    return Rates(2 * count * kind.itemsize / copied, 2 * width ** 3 / multiplied)


def seconds_of(call: Callable[[], object]) -> float:
    """Of one, of several that do not wait for each other."""
    call()
    done()
    return timed(lambda: [call() for _ in range(AT_ONCE)]) / AT_ONCE
