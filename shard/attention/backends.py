"""What a backend of attention is, and which there are."""

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from shard.attention.span import Span
from shard.attention.variant import PLAIN, Variant
from shard.cache import Cache
from shard.layers.kernels import has_triton


class Attention(Protocol):
    """Queries meet the keys and values that their sequences have in the cache, each those up to its own position."""

    def plan(self, decodes: list[Span], chunks: list[Span], num_tokens: int, cache: Cache) -> Any:
        """What all layers of a step need to know. The decodes stand in the first rows, in this order; a row that is in
        no span gets zeros."""

    def run(self, queries: Tensor, cache: Cache, layer: int, plan: Any) -> Tensor:
        """From `queries`, [tokens, heads, head_dim], to [tokens, heads * head_dim], which holds until the next run.
        The step's own keys and values are in the cache already."""


class Frames(Protocol):
    """Plans for tokens that decode, whose tensors stay where they are; one is used at a time."""

    def plan(self, rows: int) -> Any:
        """For so many tokens, the first ones on the token axis."""

    def write(self, decodes: list[Span]) -> bool:
        """What the next step is to read, as many as its plan is for; not if there is no room."""


@runtime_checkable
class Framing(Attention, Protocol):
    """Attention of which steps can be captured and repeated with other numbers."""

    def frames(self, rows: int, length: int, cache: Cache) -> Frames:
        """For up to so many tokens that decode, in sequences that are as long at most."""


BACKENDS = {  # module and class; one is imported when it is chosen, since triton is not everywhere
    "reference": ("shard.attention.reference", "ReferenceAttention"),
    "cpu": ("shard.attention.cpu", "CpuAttention"),
    "triton": ("shard.attention.triton_paged", "TritonAttention"),
}


def choose_attention(asked: str, device: str) -> str:
    """The key in BACKENDS; `device` is cpu or cuda."""
    if asked == "cpu" and device != "cpu":
        raise ValueError(f"--attention cpu computes on CPU only, the model is on --device {device}; "
                         "use --attention auto")
    if asked == "triton" and device == "cpu":
        raise ValueError("--attention triton computes on GPUs only, the model is on --device cpu; use --attention auto")
    if asked == "triton" and not has_triton():
        raise ValueError("--attention triton needs triton and gcc or clang, which are not there; use --attention auto")
    if asked != "auto":
        return asked
    if device == "cpu":
        return "cpu"
    return "triton" if has_triton() else "reference"


def make_attention(name: str, num_heads: int, num_kv_heads: int, head_dim: int, variant: Variant = PLAIN) -> Attention:
    """For one rank's heads."""
    module, kind = BACKENDS[name]
    attention: Attention = getattr(import_module(module), kind)(num_heads, num_kv_heads, head_dim, variant)
    return attention
