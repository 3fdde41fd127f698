"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from shard.models.decoder import Decoder, Source, read_decoder
from shard.models.llama import LlamaLayer, Mlp, SelfAttention


def read_layer(source: Source, layer: int) -> LlamaLayer:
    return LlamaLayer(source, layer, SelfAttention(source, layer, qkv_bias=True, output_bias=False),
                      Mlp(source, layer, bias=False))


def read_qwen2(source: Source) -> Decoder:
    return read_decoder(source, read_layer)
