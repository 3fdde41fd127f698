"""A model whose layers are modules of torch that others wrote, over our cache and our attention.

Its attention calls `attend`, which asks whoever listens to the step: `Passage` in earnest, or who looks at the model.
Products with a weight are replaced by ours. Knows nothing of where the module comes from.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shard.attention.backends import Attention
from shard.cache import Cache
from shard.distributed import Group
from shard.layers.linear import make_linear
from shard.models.config import ModelConfig
from shard.models.decoder import Product, one_of_each
from shard.step import Inputs

WORD = "weft_listener"  # what the listener is called among the words that layers pass on


class Question(NamedTuple):
    """What a layer asks of attention."""

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
    """One step."""

    inputs: Inputs
    cache: Cache
    attention: Attention

    def __call__(self, question: Question) -> Tensor:
        """Mask and words are in the variant of attention."""
        layer: Any = question.module.layer_idx
        queries, keys, values = (by_token(x, self.cache.dtype) for x in question[1:4])
        self.cache.write(layer, keys.flatten(1), values.flatten(1), self.inputs.slots)
        mixed = self.attention.run(queries, self.cache, layer, self.inputs.plan)  # [tokens, heads * head_dim]
        return mixed.view(1, *queries.shape).to(question.queries.dtype)


def by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`[1, heads, tokens, head_dim] -> [tokens, heads, head_dim]`"""
    return x[0].transpose(0, 1).to(dtype).contiguous()


class Said:
    """What a module of layers returns, with nothing but the hidden states."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        """Whatever else may be looked for is not there."""


class Echo(nn.Module):
    """Stands for the layers where only the head is wanted: the hidden states are given."""

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,  # noqa: ARG002
                **words: Any) -> Said:  # noqa: ARG002 - in the place of a module that takes them
        assert inputs_embeds is not None
        return Said(inputs_embeds)


def states(layers: nn.Module, tokens: Tensor, positions: Tensor, listener: Listener, **words: Tensor) -> Tensor:
    """`[tokens, hidden]`. `words` are more that the layers are told."""
    said = layers(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **{WORD: listener}, **words)
    hidden: Tensor = said[0][0]
    return hidden


def logits(head: nn.Module, hidden: Tensor) -> Tensor:
    """`head` is a whole model with an `Echo` in the place of its layers."""
    rows: Tensor = head(inputs_embeds=hidden[None], use_cache=False).logits[0]
    return rows


class ForeignModel:
    """As `Decoder`, of a module."""

    def __init__(self, config: ModelConfig, group: Group, layers: nn.Module, head: nn.Module,
                 path: Sequence[str]) -> None:
        """`layers` makes hidden states of tokens, `head` logits of them; the list of layers stands at `path`."""
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
        """`[rows, hidden] -> [rows, vocabulary]` in float32, on rank 0; on the others nothing"""
        return None if self._group.rank else logits(self._head, hidden).float()

    @property
    def products(self) -> list[Product]:
        return products_of(self._layers)

    @property
    def num_varied(self) -> int:
        return one_of_each(products_of(layer) for layer in part_at(self._layers, self._path))

    @property
    def steady(self) -> bool:
        """Nobody knows what others' layers do."""
        return False

    def cut(self, num_layers: int) -> "ForeignModel":
        """The first layers only, with the same weights."""
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
    """A copy with another part at `path`; all the rest is shared."""
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
    """One of our products in the place of torch's."""

    def __init__(self, replaced: nn.Linear) -> None:
        super().__init__()
        self.width = replaced.in_features
        self.linear = make_linear(replaced.weight.data, bias_of(replaced))

    def forward(self, x: Tensor) -> Tensor:
        """`x: [.., in]`"""
        y = self.linear(x.reshape(-1, self.width))
        return y.view(*x.shape[:-1], y.shape[-1])


def replace_products(module: nn.Module) -> None:
    """One after the other, so that memory holds one of them twice."""
    for name, inner in module.named_children():
        if type(inner) is nn.Linear:  # what is made from it may do more
            setattr(module, name, Replaced(inner))
        else:
            replace_products(inner)
