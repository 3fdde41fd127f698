"""GGUF files for llama.cpp, written from a checkpoint with Qwen 2's tensors in bfloat16.

A file is a header, metadata (typed keys and values), the names, shapes and offsets of all tensors, and their data, each
at a multiple of 32 bytes. llama.cpp reads biases and norms in float32; matrices are copied as they are.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata
F32_TENSOR, BF16_TENSOR = 0, 30  # types of tensors
BF16_FILE = 32  # type of a file whose matrices are in bfloat16
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3
TENSOR_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight"}
LAYER_TENSOR_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


@dataclass(frozen=True, slots=True)
class TensorSource:
    """Tensor in bfloat16 in a safetensors file: name, shape, and where its data begins and ends in the file."""

    name: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def is_widened(self) -> bool:
        """Whether llama.cpp reads this tensor in float32."""
        return len(self.shape) == 1

    @property
    def num_bytes(self) -> int:
        """Size in the GGUF file."""
        return (self.end - self.begin) * (2 if self.is_widened else 1)


def write_gguf(checkpoint: Path, path: Path) -> None:
    """Write the checkpoint as a GGUF file. Raises ValueError for another architecture than Qwen 2."""
    config = json.loads((checkpoint / "config.json").read_text())
    if config["model_type"] != "qwen2":
        raise ValueError(f"GGUF files are written for qwen2 only, got {config['model_type']}")
    metadata = [*iter_model_metadata(config),
                *iter_tokenizer_metadata(json.loads((checkpoint / "tokenizer.json").read_text()), config)]
    with (checkpoint / "model.safetensors").open("rb") as source, path.open("wb") as target:
        tensors = read_tensor_sources(source)
        target.write(MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(metadata)))
        target.write(b"".join(encode_string(key) + value for key, value in metadata))
        target.write(encode_tensor_directory(tensors))
        for tensor in tensors:
            pad_to_alignment(target)
            source.seek(tensor.begin)
            data = source.read(tensor.end - tensor.begin)
            target.write(widen_bfloat16(data) if tensor.is_widened else data)
        pad_to_alignment(target)


def iter_model_metadata(config: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and encoded values that describe a Qwen 2 model."""
    yield "general.architecture", encode_typed_string("qwen2")
    yield "general.name", encode_typed_string("random weights")
    yield "general.file_type", encode_uint32(BF16_FILE)
    for key, name in (("block_count", "num_hidden_layers"), ("context_length", "max_position_embeddings"),
                      ("embedding_length", "hidden_size"), ("feed_forward_length", "intermediate_size"),
                      ("attention.head_count", "num_attention_heads"),
                      ("attention.head_count_kv", "num_key_value_heads")):
        yield f"qwen2.{key}", encode_uint32(config[name])
    yield "qwen2.attention.layer_norm_rms_epsilon", encode_float32(config["rms_norm_eps"])
    yield "qwen2.rope.freq_base", encode_float32(config["rope_theta"])


def iter_tokenizer_metadata(tokenizer: dict[str, Any], config: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and encoded values of a byte-level BPE tokenizer, given as the JSON of the library tokenizers.

    Raises ValueError if it has another number of tokens than the model."""
    special_ids = {item["content"]: item["id"] for item in tokenizer["added_tokens"]}
    tokens = sorted((tokenizer["model"]["vocab"] | special_ids).items(), key=lambda item: item[1])
    if [number for _, number in tokens] != list(range(config["vocab_size"])):
        raise ValueError(f"the model has {config['vocab_size']} tokens, its tokenizer {len(tokens)}, or other ids")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    types = [CONTROL_TOKEN if text in special_ids else NORMAL_TOKEN for text, _ in tokens]
    yield "tokenizer.ggml.model", encode_typed_string("gpt2")
    yield "tokenizer.ggml.pre", encode_typed_string("gpt-2")
    yield "tokenizer.ggml.tokens", encode_array(STRING, [encode_string(text) for text, _ in tokens])
    yield "tokenizer.ggml.token_type", encode_array(INT32, [struct.pack("<i", number) for number in types])
    yield "tokenizer.ggml.merges", encode_array(STRING, list(map(encode_string, merges)))
    yield "tokenizer.ggml.eos_token_id", encode_uint32(config["eos_token_id"])
    yield "tokenizer.ggml.add_bos_token", struct.pack("<I?", BOOL, False)


def convert_tensor_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name):
        return f"blk.{match[1]}.{LAYER_TENSOR_NAMES[match[2]]}.{match[3]}"
    return TENSOR_NAMES[name]


def read_tensor_sources(file: BinaryIO) -> list[TensorSource]:
    """Read the header of a safetensors file of our own making."""
    header_length = int(struct.unpack("<Q", file.read(8))[0])
    header = json.loads(file.read(header_length))
    return [TensorSource(name, tuple(entry["shape"]), *(8 + header_length + at for at in entry["data_offsets"]))
            for name, entry in header.items()]


def encode_tensor_directory(tensors: Iterable[TensorSource]) -> bytes:
    """Return the names, shapes, types and offsets of the tensors; dimensions are in reverse order, as GGML has them."""
    entries, offset = [], 0
    for tensor in tensors:
        dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        tensor_type = F32_TENSOR if tensor.is_widened else BF16_TENSOR
        entries.append(encode_string(convert_tensor_name(tensor.name)) + dimensions
                       + struct.pack("<IQ", tensor_type, offset))
        offset += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
    return b"".join(entries)


def widen_bfloat16(data: bytes) -> bytes:
    """Return bfloat16 numbers as float32: their bits are the upper half of it."""
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).tobytes()


def pad_to_alignment(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def encode_string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def encode_typed_string(text: str) -> bytes:
    return struct.pack("<I", STRING) + encode_string(text)


def encode_uint32(value: int) -> bytes:
    return struct.pack("<II", UINT32, value)


def encode_float32(value: float) -> bytes:
    return struct.pack("<If", FLOAT32, value)


def encode_array(item_type: int, items: Sequence[bytes]) -> bytes:
    return struct.pack("<IIQ", ARRAY, item_type, len(items)) + b"".join(items)
