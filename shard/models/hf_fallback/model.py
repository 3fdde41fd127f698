"""Model whose layers are foreign torch modules, run with our KV cache and attention backends.

The modules' attention calls `attend`, which calls the step's listener: a `Passage` in serving, a `Look` when the model
is probed. Linears are replaced by ours.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shard.attention.backend import Attention
from shard.attention.inputs import Inputs
from shard.attention.kv_cache import Cache
from shard.models.config import ModelConfig
from shard.models.decoder import Product, one_of_each
from shard.ops.linear import make_linear
from shard.parallel.group import Group

WORD = "weft_listener"  # keyword argument with which layers pass the listener on to attention


class Question(NamedTuple):
    """Arguments with which a layer calls attention."""

    module: nn.Module
    queries: Tensor  # [1, heads, tokens, head_dim]
    keys: Tensor  # [1, kv heads, tokens, head_dim]
    values: Tensor  # the same
    mask: object
    words: dict[str, Any]


Listener = Callable[[Question], Tensor]  # [1, tokens, heads, head_dim]


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object = None,
           **words: Any) -> tuple[Tensor, None]:
    if WORD not in words:
        raise TypeError("layers do not pass on all that they are told")
    listener: Listener = words.pop(WORD)
    return listener(Question(module, query, key, value, attention_mask, words)), None


@dataclass(frozen=True, slots=True)
class Passage:
    """Listener of one step, which runs attention over the cache."""

    inputs: Inputs
    cache: Cache
    attention: Attention

    def __call__(self, question: Question) -> Tensor:
        """Run attention for one layer. Mask and keyword arguments are unused: the backend's `Variant` covers them."""
        layer: Any = question.module.layer_idx
        queries, keys, values = (by_token(x, self.cache.dtype) for x in question[1:4])
        self.cache.write(layer, keys.flatten(1), values.flatten(1), self.inputs.slots)
        mixed = self.attention.run(queries, self.cache, layer, self.inputs.plan)  # [tokens, heads * head_dim]
        return mixed.view(1, *queries.shape).to(question.queries.dtype)


def by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`[1, heads, tokens, head_dim] -> [tokens, heads, head_dim]`"""
    return x[0].transpose(0, 1).to(dtype).contiguous()


class Said:
    """Output of a decoder as transformers expects it, with hidden states only."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        """Return None for every other attribute."""


class Echo(nn.Module):
    """Replacement of the layers in a model that is only run for its head: it returns the hidden states it is given."""

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,  # noqa: ARG002
                **words: Any) -> Said:  # noqa: ARG002 - signature of the replaced module
        assert inputs_embeds is not None
        return Said(inputs_embeds)


def states(layers: nn.Module, tokens: Tensor, positions: Tensor, listener: Listener, **words: Tensor) -> Tensor:
    """Run the layers and return the hidden states, `[tokens, hidden]`. `words`: further keyword arguments."""
    said = layers(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **{WORD: listener}, **words)
    hidden: Tensor = said[0][0]
    return hidden


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states. `head` is a whole model whose layers are replaced by an `Echo`."""
    rows: Tensor = head(inputs_embeds=hidden[None], use_cache=False).logits[0]
    return rows


class ForeignModel:
    """`LanguageModel` made of foreign torch modules."""

    def __init__(self, config: ModelConfig, group: Group, layers: nn.Module, head: nn.Module,
                 path: Sequence[str]) -> None:
        """`layers` maps tokens to hidden states, `head` these to logits. `path`: path to the list of layers."""
        self.config = config
        self._group = group
        self._layers = layers
        self._head = head
        self._path = path

    @property
    def num_layers(self) -> int:
        return len(part_at(self._layers, self._path))

    @property
    def num_kv_heads(self) -> int:
        return self.config.num_kv_heads // self._group.size

    @property
    def head_dim(self) -> int:
        return self.config.head_dim

    def hidden(self, inputs: Inputs, cache: Cache, attention: Attention) -> Tensor:
        """`[tokens, hidden]`"""
        return states(self._layers, inputs.tokens, inputs.positions, Passage(inputs, cache, attention))

    def logits(self, hidden: Tensor) -> Tensor | None:
        """Map `[rows, hidden]` to float32 logits, `[rows, vocabulary]`, on rank 0; return None on other ranks."""
        return None if self._group.rank else logits(self._head, hidden).float()

    @property
    def products(self) -> list[Product]:
        return products_of(self._layers)

    @property
    def num_varied(self) -> int:
        return one_of_each(products_of(layer) for layer in part_at(self._layers, self._path))

    @property
    def steady(self) -> bool:
        """Always False: it is unknown which kernels foreign layers launch."""
        return False

    def cut(self, num_layers: int) -> "ForeignModel":
        """Return a model of the first layers only, with the same weights."""
        kept = nn.ModuleList(list(part_at(self._layers, self._path))[:num_layers])
        return ForeignModel(
            self.config, self._group, with_part(self._layers, self._path, kept), self._head, self._path)


def products_of(module: nn.Module) -> list[Product]:
    return [(inner.linear, inner.width) for inner in module.modules() if isinstance(inner, Replaced)]


def part_at(module: nn.Module, path: Sequence[str]) -> nn.ModuleList:
    part = module.get_submodule(".".join(path))
    assert isinstance(part, nn.ModuleList)
    return part


def with_part(module: nn.Module, path: Sequence[str], part: nn.Module) -> nn.Module:
    """Return a copy with another submodule at `path`; all other submodules are shared."""
    first, *others = path
    copied = copy(module)
    inner = copied._modules[first]
    assert inner is not None
    copied._modules = copied._modules | {first: with_part(inner, others, part) if others else part}
    return copied


def bias_of(linear: nn.Linear) -> Tensor | None:
    bias: nn.Parameter | None = linear.bias
    return None if bias is None else bias.data


class Replaced(nn.Module):
    """Module that computes an nn.Linear by one of our linears."""

    def __init__(self, replaced: nn.Linear) -> None:
        super().__init__()
        self.width = replaced.in_features
        self.linear = make_linear(replaced.weight.data, bias_of(replaced))

    def forward(self, x: Tensor) -> Tensor:
        """`x: [.., in]`"""
        y = self.linear(x.reshape(-1, self.width))
        return y.view(*x.shape[:-1], y.shape[-1])


def replace_products(module: nn.Module) -> None:
    """Replace every nn.Linear by our linear, one after the other, so that memory holds only one of them twice."""
    for name, inner in module.named_children():
        if type(inner) is nn.Linear:  # a subclass may compute something else
            setattr(module, name, Replaced(inner))
        else:
            replace_products(inner)
