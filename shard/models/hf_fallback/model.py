"""Model whose layers are foreign torch modules, run with our KV cache and attention backends.

The modules' attention calls `weft_attention_forward`, which calls the step's listener: a `PagedAttentionCallback` in
serving, an `AttentionProbe` when the model is probed. Linears are replaced by ours, and split over the ranks by the
module's tensor-parallel plan: colwise ones by outputs, rowwise ones by inputs, with results summed over the ranks.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shard.attention.backend import AttentionBackend
from shard.attention.kv_cache import KVCache
from shard.attention.model_inputs import ModelInputs
from shard.models.config import ModelConfig
from shard.models.decoder import BaseLanguageModel, SizedLinear
from shard.ops.unquantized_linear import make_linear
from shard.parallel.group import RankGroup, even_rank_range

REPLICATED_STYLE = "replicated_with_grad_allreduce"  # replicated on every rank
CALLBACK_KEYWORD = "weft_attention_callback"  # keyword argument with which layers pass the callback on to attention


class AttentionCallArguments(NamedTuple):
    """Arguments with which a layer calls attention."""

    module: nn.Module
    queries: Tensor  # [1, heads, tokens, head_dim]
    keys: Tensor  # [1, kv heads, tokens, head_dim]
    values: Tensor  # the same
    mask: object
    extra_arguments: dict[str, Any]


AttentionCallback = Callable[[AttentionCallArguments], Tensor]  # [1, tokens, heads, head_dim]


def weft_attention_forward(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object = None,
                           **extra_arguments: Any) -> tuple[Tensor, None]:
    if CALLBACK_KEYWORD not in extra_arguments:
        raise TypeError("layers do not pass on all keyword arguments")
    callback: AttentionCallback = extra_arguments.pop(CALLBACK_KEYWORD)
    return callback(AttentionCallArguments(module, query, key, value, attention_mask, extra_arguments)), None


@dataclass(frozen=True, slots=True)
class PagedAttentionCallback:
    """Callback of one step, which runs attention over the cache."""

    inputs: ModelInputs
    cache: KVCache
    attention: AttentionBackend

    def __call__(self, call: AttentionCallArguments) -> Tensor:
        """Run attention for one layer. Mask and keyword arguments are unused: the backend's `AttentionOptions` covers
        them."""
        layer: Any = call.module.layer_idx
        queries, keys, values = (x[0].transpose(0, 1).to(self.cache.dtype).contiguous()  # [tokens, heads, head_dim]
                                 for x in call[1:4])
        self.cache.write(layer, keys.flatten(1), values.flatten(1), self.inputs.slots)
        mixed = self.attention.run(queries, self.cache, layer, self.inputs.attention_plan)  # [tokens, heads * head_dim]
        return mixed.view(1, *queries.shape).to(call.queries.dtype)


class FallbackDecoderOutput:
    """Output of a decoder as transformers expects it, with hidden states only."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        """Return None for every other attribute."""


class IdentityDecoder(nn.Module):
    """Replacement of the layers in a model that is only run for its head: it returns the hidden states it is given."""

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None,  # noqa: ARG002
                **extra_arguments: Any) -> FallbackDecoderOutput:  # noqa: ARG002 - signature of the replaced module
        assert inputs_embeds is not None
        return FallbackDecoderOutput(inputs_embeds)


def run_backbone(layers: nn.Module, tokens: Tensor, positions: Tensor, callback: AttentionCallback,
                 **extra_arguments: Tensor) -> Tensor:
    """Run the layers and return the hidden states, `[tokens, hidden]`. `extra_arguments`: further keyword arguments."""
    output = layers(input_ids=tokens[None], position_ids=positions[None], use_cache=False,
                    **{CALLBACK_KEYWORD: callback}, **extra_arguments)
    hidden: Tensor = output[0][0]
    return hidden


def run_head(head: nn.Module, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states. `head` is a whole model whose layers are replaced by an `IdentityDecoder`."""
    rows: Tensor = head(inputs_embeds=hidden[None], use_cache=False).logits[0]
    return rows


class FallbackModel(BaseLanguageModel):
    """`BaseLanguageModel` made of foreign torch modules."""

    is_capturable = False  # it is unknown which kernels foreign layers launch

    def __init__(self, config: ModelConfig, group: RankGroup, layers: nn.Module, head: nn.Module,
                 layers_path: Sequence[str]) -> None:
        """`layers` maps tokens to hidden states, `head` these to logits. `layers_path`: path to the list of layers."""
        self.config = config
        self.num_kv_heads = config.num_kv_heads // group.size
        self._group = group
        self._layers = layers
        self._head = head
        self._layers_path = layers_path

    @property
    def layer_linears(self) -> list[list[SizedLinear]]:
        return [[(inner.linear, inner.in_features) for inner in layer.modules() if isinstance(inner, LinearReplacement)]
                for layer in get_layer_list(self._layers, self._layers_path)]

    def forward(self, inputs: ModelInputs, cache: KVCache, attention: AttentionBackend) -> Tensor:
        return run_backbone(self._layers, inputs.tokens, inputs.positions,
                            PagedAttentionCallback(inputs, cache, attention))

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        return None if self._group.rank else run_head(self._head, hidden_states).float()

    def copy_first_layers(self, num_layers: int) -> "FallbackModel":
        kept = nn.ModuleList(list(get_layer_list(self._layers, self._layers_path))[:num_layers])
        return FallbackModel(self.config, self._group, replace_submodule_in_copy(self._layers, self._layers_path, kept),
                             self._head, self._layers_path)


def get_layer_list(module: nn.Module, path: Sequence[str]) -> nn.ModuleList:
    layer_list = module.get_submodule(".".join(path))
    assert isinstance(layer_list, nn.ModuleList)
    return layer_list


def replace_submodule_in_copy(module: nn.Module, path: Sequence[str], submodule: nn.Module) -> nn.Module:
    """Return a copy with another submodule at `path`; all other submodules are shared."""
    first, *rest = path
    copied = copy(module)
    inner = copied._modules[first]
    assert inner is not None
    copied._modules = copied._modules | {first: replace_submodule_in_copy(inner, rest, submodule) if rest
                                         else submodule}
    return copied


def get_bias_tensor(linear: nn.Linear) -> Tensor | None:
    bias: nn.Parameter | None = linear.bias
    return None if bias is None else bias.data


class LinearReplacement(nn.Module):
    """Module that computes an nn.Linear by one of our linears."""

    def __init__(self, original: nn.Linear) -> None:
        super().__init__()
        self.in_features = original.in_features
        self.linear = make_linear(original.weight.data, get_bias_tensor(original))

    def forward(self, x: Tensor) -> Tensor:
        """`x: [.., in]`"""
        y = self.linear(x.reshape(-1, self.in_features))
        return y.view(*x.shape[:-1], y.shape[-1])


def replace_linears(module: nn.Module) -> None:
    """Replace every nn.Linear by our linear, one after the other, so that memory holds only one of them twice."""
    for name, inner in module.named_children():
        if type(inner) is nn.Linear:  # a subclass may compute something else
            setattr(module, name, LinearReplacement(inner))
        else:
            replace_linears(inner)


# ---------------------------------------------------------------------------------------------------------------------
# Split over the ranks


RankSum = Callable[[Tensor], Tensor]


class RankSummedLinear(nn.Module):
    """Linear over this rank's slice of the inputs, whose results are summed over the ranks."""

    def __init__(self, linear: nn.Linear, sum_over_ranks: RankSum) -> None:
        super().__init__()
        self.linear = linear
        self._sum_over_ranks = sum_over_ranks

    def forward(self, x: Tensor) -> Tensor:
        return self._sum_over_ranks(self.linear(x))


def split_linear_by_outputs(linear: nn.Linear, group: RankGroup, _: RankSum) -> nn.Module:
    rank_range = even_rank_range(linear.out_features, group.rank, group.size)
    rows = slice(rank_range.start, rank_range.stop)
    bias = get_bias_tensor(linear)
    return make_linear_copy(linear.weight[rows], None if bias is None else bias[rows])


def split_linear_by_inputs(linear: nn.Linear, group: RankGroup, sum_over_ranks: RankSum) -> nn.Module:
    """Split by inputs. Only rank 0 keeps the bias, so that it is added once."""
    rank_range = even_rank_range(linear.in_features, group.rank, group.size)
    return RankSummedLinear(
        make_linear_copy(linear.weight[:, rank_range.start:rank_range.stop],
                         None if group.rank else get_bias_tensor(linear)), sum_over_ranks)


SPLIT_FUNCTIONS = {"colwise": split_linear_by_outputs, "rowwise": split_linear_by_inputs}


def make_linear_copy(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear with copies of `weight` and `bias`, so that the tensors they are slices of can be freed."""
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, bias=bias is not None, device=torch.device("meta"))
    linear.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), requires_grad=False)
    return linear


def split_linears(module: nn.Module, tensor_parallel_plan: Mapping[str, str], group: RankGroup,
                  sum_over_ranks: RankSum) -> None:
    """Split the module's linears in place. Raises ValueError if the plan is not supported.

    `tensor_parallel_plan`: split style by module name, where a star matches any number. `sum_over_ranks` sums over the
    ranks.
    """
    if unknown := sorted(set(tensor_parallel_plan.values()) - SPLIT_FUNCTIONS.keys() - {REPLICATED_STYLE}):
        raise ValueError(f"it would have to be split as {', '.join(unknown)}")
    splits = [(re.compile(re.escape(name).replace(r"\*", r"\d+")), SPLIT_FUNCTIONS[style])
              for name, style in tensor_parallel_plan.items() if style != REPLICATED_STYLE]
    for name, linear in list(module.named_modules()):
        split = next((split for pattern, split in splits if pattern.fullmatch(name)), None)
        if split is None:
            continue
        if type(linear) is not nn.Linear:
            raise ValueError(f"{name} is a {type(linear).__name__}, which cannot be split")
        module.set_submodule(name, split(linear, group, sum_over_ranks))
