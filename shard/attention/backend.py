"""Interface of attention backends, their options, and the table of implementations."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from shard.attention.kv_cache import KVCache
from shard.ops.triton_support import has_triton
from shard.state.step import TokenSpan


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Options of attention that every backend applies: scale, soft-capping, sliding windows, exactness."""

    scale: float | None = None  # factor of the scores; None: one over the square root of head_dim
    softcap: float = 0.0  # soft limit of the scores; 0: none
    # by layer: positions that a token attends to, its own included, 0: all; empty: all
    sliding_windows: Sequence[int] = ()
    exact: bool = False  # whether `--exact` is set: no faster computation that gives a decoded token other bits

    def window_of_layer(self, layer: int) -> int:
        return self.sliding_windows[layer] if self.sliding_windows else 0

    @property
    def window_sizes(self) -> list[int]:
        """Distinct window sizes."""
        return sorted(set(self.sliding_windows)) or [0]

    def compute_score_scale(self, head_dim: int) -> float:
        return head_dim ** -0.5 if self.scale is None else self.scale


DEFAULT_ATTENTION_OPTIONS = AttentionOptions()


class AttentionBackend(Protocol):
    """Attention backend. Each query attends to its sequence's cached keys and values up to its own position."""

    def plan(self, decodes: list[TokenSpan], chunks: list[TokenSpan], num_tokens: int, cache: KVCache) -> Any:
        """Return the plan of a step, which all layers use.

        The decodes have the first rows, in this order; the output of a row in no span is zeros.
        """

    def run(self, queries: Tensor, cache: KVCache, layer: int, plan: Any) -> Tensor:
        """Attend from `queries`, [tokens, heads, head_dim]; the result is [tokens, heads * head_dim].

        The result is valid until the next run. The step's own keys and values must already be in the cache.
        """


class StaticPlans(Protocol):
    """Plans of decode steps whose tensors keep their addresses; one plan is used at a time."""

    def make_plan(self, num_rows: int) -> Any:
        """Return the plan of a step of `num_rows` tokens, the first ones on the token axis."""

    def write_spans(self, decodes: list[TokenSpan]) -> bool:
        """Write the spans of the next step, as many as its plan has rows. Return False if they do not fit."""


@runtime_checkable
class CapturableAttentionBackend(AttentionBackend, Protocol):
    """Attention backend whose decode steps can be captured and replayed with other inputs."""

    def make_static_plans(self, max_rows: int, max_length: int, cache: KVCache) -> StaticPlans:
        """Return plans for up to `max_rows` decodes of sequences of up to `max_length` tokens."""


ATTENTION_BACKENDS = {  # module and class; imported only if chosen, since triton may not be installed
    "reference": ("shard.attention.reference", "ReferenceAttention"),
    "cpu": ("shard.attention.cpu", "CpuAttention"),
    "native": ("shard.attention.native", "NativeAttention"),
    "triton": ("shard.attention.triton", "TritonAttention"),
}

CPU_BACKENDS = ("cpu", "native")


def choose_attention_backend(requested: str, device: str, *, is_native_possible: bool) -> str:
    """Return the key in ATTENTION_BACKENDS; `device` is cpu or cuda. `is_native_possible`: whether compiled kernels
    compute this model's attention on a CPU."""
    if requested in CPU_BACKENDS and device != "cpu":
        raise ValueError(f"--attention {requested} computes on CPU only, the model is on --device {device}; "
                         "use --attention auto")
    if requested == "native" and not is_native_possible:
        raise ValueError("--attention native needs compiled kernels for this processor, model and --dtype (weft doctor "
                         "says whether there are some); use --attention auto")
    if requested == "triton" and device == "cpu":
        raise ValueError("--attention triton computes on GPUs only, the model is on --device cpu; use --attention auto")
    if requested == "triton" and not has_triton():
        raise ValueError("--attention triton needs triton and gcc or clang, which are not there; use --attention auto")
    if requested != "auto":
        return requested
    if device == "cpu":
        return "native" if is_native_possible else "cpu"
    return "triton" if has_triton() else "reference"


def make_attention_backend(name: str, num_heads: int, num_kv_heads: int, head_dim: int,
                           attention_options: AttentionOptions = DEFAULT_ATTENTION_OPTIONS) -> AttentionBackend:
    """Return the backend `name` for one rank's heads."""
    module, class_name = ATTENTION_BACKENDS[name]
    attention: AttentionBackend = getattr(import_module(module), class_name)(num_heads, num_kv_heads, head_dim,
                                                                             attention_options)
    return attention
