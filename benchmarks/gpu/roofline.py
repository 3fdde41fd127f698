"""Roofline of a card: its measured rates, and the time of a step that is limited by nothing else.

A matmul takes as long as reading its weights or as computing, whichever is longer; moving KV cache and logits is added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import torch

from benchmarks.harness.checkpoints import tensors
from benchmarks.harness.random_state import done, timed

WIDTH = {"cuda": 8192, "cpu": 512}  # of the square matrices whose matmul is timed
COPIED = {"cuda": 2**32, "cpu": 2**26}  # bytes
TIMES, AT_ONCE = 7, 10  # repetitions, and calls that each queues without waiting


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of a card."""

    bytes: float  # per second, read and written
    operations: float  # per second, in matmuls of large matrices

    def told(self) -> str:
        return f"copies {self.bytes / 1e12:.3g} TB/s, products {self.operations / 1e12:.3g} TFLOP/s"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model, counted in values of `itemsize` bytes."""

    matrices: tuple[int, ...]  # number of weights of every linear in its layers
    head: int
    vocabulary: int
    layers: int
    queries: int  # query values of all heads of a layer
    cached: int  # values of a token in the KV cache, over all layers
    itemsize: int

    def decode_seconds(self, rates: Rates, batch: int, context: int) -> float:
        products = sum(max(self.itemsize * weights / rates.bytes, 2 * weights * batch / rates.operations)
                       for weights in (*self.matrices, self.head))
        moved = batch * (context * self.cached + 2 * self.vocabulary)  # logits are written and read
        return products + self.itemsize * moved / rates.bytes

    def prompt_operations(self, length: int) -> float:
        """Return the operations of one prompt: logits of its last token only, and half of all pairs in attention."""
        attention = 2 * self.layers * self.queries * length * (length + 1)
        return 2 * (sum(self.matrices) * length + self.head) + attention


def sizes(config: dict[str, Any], dtype: torch.dtype) -> Sizes:
    """Return the sizes of one of the Llama and Qwen shapes."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim", hidden // heads)
    matrices = tuple(prod(shape) for name, shape in tensors(config) if name.endswith("_proj.weight"))
    layers = config["num_hidden_layers"]
    return Sizes(matrices, config["vocab_size"] * hidden, config["vocab_size"], layers, heads * head_dim,
                 2 * layers * config["num_key_value_heads"] * head_dim, dtype.itemsize)


@torch.inference_mode()
def rates(device: str, dtype: str) -> Rates:
    """Measure the rates of a device. `dtype` is as in `weft serve`; auto: bfloat16."""
    kind = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    width, count = WIDTH[device], COPIED[device] // kind.itemsize
    source, target = (torch.zeros(count, dtype=kind, device=device) for _ in range(2))
    left, right = (torch.randn(width, width, dtype=kind, device=device) for _ in range(2))
    product = torch.empty_like(left)
    copied = median(seconds_of(lambda: target.copy_(source)) for _ in range(TIMES))
    multiplied = median(seconds_of(lambda: torch.mm(left, right, out=product)) for _ in range(TIMES))
    return Rates(2 * count * kind.itemsize / copied, 2 * width ** 3 / multiplied)


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of one call, averaged over AT_ONCE calls that do not wait for each other."""
    call()
    done()
    return timed(lambda: [call() for _ in range(AT_ONCE)]) / AT_ONCE
