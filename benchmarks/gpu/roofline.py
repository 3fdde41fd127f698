"""Roofline of a card: its measured rates, and the time of a step that is limited by nothing else.

A matmul takes as long as reading its weights or as computing, whichever is longer; moving KV cache and logits is added.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any

import torch

from benchmarks.harness.gpu_timing import measure_seconds, synchronize_gpu
from benchmarks.harness.random_checkpoints import iter_tensor_shapes

MATMUL_WIDTH = {"cuda": 8192, "cpu": 512}  # of the square matrices whose matmul is timed
COPY_BYTES = {"cuda": 2**32, "cpu": 2**26}  # bytes
NUM_REPETITIONS, CALLS_PER_REPETITION = 7, 10  # repetitions, and calls that each queues without waiting


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Measured rates of a card."""

    bytes_per_second: float  # per second, read and written
    flops_per_second: float  # per second, in matmuls of large matrices

    def describe(self) -> str:
        return f"copies {self.bytes_per_second / 1e12:.3g} TB/s, products {self.flops_per_second / 1e12:.3g} TFLOP/s"


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model, counted in values of `itemsize` bytes."""

    linear_weight_counts: tuple[int, ...]  # number of weights of every linear in its layers
    num_head_weights: int
    vocabulary_size: int
    num_layers: int
    query_width: int  # query values of all heads of a layer
    kv_values_per_token: int  # values of a token in the KV cache, over all layers
    itemsize: int

    def ideal_decode_seconds(self, device_rates: DeviceRates, batch_size: int, context_length: int) -> float:
        matmul_seconds = sum(max(self.itemsize * weights / device_rates.bytes_per_second,
                                 2 * weights * batch_size / device_rates.flops_per_second)
                             for weights in (*self.linear_weight_counts, self.num_head_weights))
        # logits are written and read
        num_moved_values = batch_size * (context_length * self.kv_values_per_token + 2 * self.vocabulary_size)
        return matmul_seconds + self.itemsize * num_moved_values / device_rates.bytes_per_second

    def prefill_flops(self, prompt_length: int) -> float:
        """Return the operations of one prompt: logits of its last token only, and half of all pairs in attention."""
        attention_flops = 2 * self.num_layers * self.query_width * prompt_length * (prompt_length + 1)
        return 2 * (sum(self.linear_weight_counts) * prompt_length + self.num_head_weights) + attention_flops


def compute_model_sizes(config: dict[str, Any], dtype: torch.dtype) -> ModelSizes:
    """Return the sizes of one of the Llama and Qwen shapes."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = config.get("head_dim", hidden // heads)
    linear_weight_counts = tuple(prod(shape) for name, shape in iter_tensor_shapes(config)
                                 if name.endswith("_proj.weight"))
    layers = config["num_hidden_layers"]
    return ModelSizes(linear_weight_counts, config["vocab_size"] * hidden, config["vocab_size"], layers,
                      heads * head_dim, 2 * layers * config["num_key_value_heads"] * head_dim, dtype.itemsize)


@torch.inference_mode()
def measure_device_rates(device: str, dtype: str) -> DeviceRates:
    """Measure the rates of a device. `dtype` is as in `weft serve`; auto: bfloat16."""
    torch_dtype = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    width, count = MATMUL_WIDTH[device], COPY_BYTES[device] // torch_dtype.itemsize
    source, target = (torch.zeros(count, dtype=torch_dtype, device=device) for _ in range(2))
    left, right = (torch.randn(width, width, dtype=torch_dtype, device=device) for _ in range(2))
    product = torch.empty_like(left)
    copy_seconds = median(measure_call_seconds(lambda: target.copy_(source)) for _ in range(NUM_REPETITIONS))
    matmul_seconds = median(measure_call_seconds(lambda: torch.mm(left, right, out=product))
                            for _ in range(NUM_REPETITIONS))
    return DeviceRates(2 * count * torch_dtype.itemsize / copy_seconds, 2 * width ** 3 / matmul_seconds)


def measure_call_seconds(function: Callable[[], object]) -> float:
    """Return the seconds of one call, averaged over CALLS_PER_REPETITION calls that do not wait for each other."""
    function()
    synchronize_gpu()
    return measure_seconds(lambda: [function() for _ in range(CALLS_PER_REPETITION)]) / CALLS_PER_REPETITION
