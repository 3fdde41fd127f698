"""Model folders with the shapes of published models and random weights, so that nothing has to be downloaded.

`python -P -m benchmarks.harness.random_checkpoints qwen2.5-0.5b FOLDER` makes one. It needs little memory.
"""

import json
import struct
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

NUM_RANDOM_VALUES = 10_000_019  # a prime, so that rows of a matrix differ
WEIGHT_STANDARD_DEVIATION = 0.02  # standard deviation of the weights
# name suffixes of the weights that are ones
NORM_WEIGHT_SUFFIXES = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")
LLAMA_3_ROPE_SCALING = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192}
LLAMA_3_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rms_norm_eps": 1e-05,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 256}
MODEL_CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 768,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-06, "hidden_act": "silu",
        "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": 256},
    "gpt2-medium": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16,
        "n_positions": 1024, "vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": 256},
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06, "hidden_act": "silu",
        "tie_word_embeddings": True, "use_sliding_window": False, "torch_dtype": "bfloat16", "eos_token_id": 256},
    "llama-3.2-1b": LLAMA_3_CONFIG | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64,
        "tie_word_embeddings": True, "rope_scaling": LLAMA_3_ROPE_SCALING | {"factor": 32.0}},
    "llama-3.1-8b": LLAMA_3_CONFIG | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
        "tie_word_embeddings": False, "rope_scaling": LLAMA_3_ROPE_SCALING | {"factor": 8.0}},
}

# with Llama's names for everything
LLAMA_SHAPES = tuple(name for name, shape in MODEL_CONFIGS.items() if "hidden_size" in shape)


def make_random_checkpoint(shape: str, folder: Path) -> Path:
    """Create the model folder with all files that serving needs, unless it exists, and return it."""
    config = MODEL_CONFIGS[shape]
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=1))
        make_byte_tokenizer().save(str(folder / "tokenizer.json"))
        unfinished_path = folder / "model.unfinished"
        write_random_safetensors(unfinished_path, dict(iter_tensor_shapes(config)))
        unfinished_path.rename(folder / "model.safetensors")
    return folder


def iter_tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of the tensors of a GPT-2, Llama or Qwen 2 model."""
    if config["model_type"] == "gpt2":
        yield from iter_gpt2_tensor_shapes(config)
        return
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query_width, key_width = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        for part, width in (("q", query_width), ("k", key_width), ("v", key_width)):
            yield f"{name}.self_attn.{part}_proj.weight", (width, hidden)
            if config["model_type"] == "qwen2":
                yield f"{name}.self_attn.{part}_proj.bias", (width,)
        yield f"{name}.self_attn.o_proj.weight", (hidden, query_width)
        yield f"{name}.mlp.gate_proj.weight", (intermediate, hidden)
        yield f"{name}.mlp.up_proj.weight", (intermediate, hidden)
        yield f"{name}.mlp.down_proj.weight", (hidden, intermediate)
        yield f"{name}.input_layernorm.weight", (hidden,)
        yield f"{name}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def iter_gpt2_tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of GPT-2's tensors; its linear weights are [in, out]."""
    hidden = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], hidden)
    yield "transformer.wpe.weight", (config["n_positions"], hidden)
    for layer in range(config["n_layer"]):
        name = f"transformer.h.{layer}"
        for part, inputs, outputs in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                      ("mlp.c_fc", hidden, 4 * hidden), ("mlp.c_proj", 4 * hidden, hidden)):
            yield f"{name}.{part}.weight", (inputs, outputs)
            yield f"{name}.{part}.bias", (outputs,)
        for norm in ("ln_1", "ln_2"):
            yield from iter_layernorm_shapes(f"{name}.{norm}", hidden)
    yield from iter_layernorm_shapes("transformer.ln_f", hidden)


def iter_layernorm_shapes(name: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (hidden,)
    yield f"{name}.bias", (hidden,)


def write_random_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write random BF16 tensors in the safetensors format: length of the header, header, bytes of all tensors."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header_bytes = json.dumps(header).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    ones, noise = to_bfloat16_bytes(np.ones(2**16, np.float32)), RandomWeightBytes()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header_bytes)) + header_bytes)
        for name, shape in shapes.items():
            size = 2 * prod(shape)
            for piece in [ones[:size]] if name.endswith(NORM_WEIGHT_SUFFIXES) else noise.iter_pieces(size):
                file.write(piece)


class RandomWeightBytes:
    """Random bytes, drawn once and repeated from a moving offset: drawing billions takes many minutes."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._bytes = to_bfloat16_bytes(random.standard_normal(NUM_RANDOM_VALUES, np.float32)
                                        * np.float32(WEIGHT_STANDARD_DEVIATION))
        self._offset = 0

    def iter_pieces(self, num_bytes: int) -> Iterator[bytes]:
        while num_bytes:
            piece = self._bytes[self._offset:self._offset + num_bytes]
            num_bytes -= len(piece)
            self._offset = (self._offset + len(piece)) % len(self._bytes)
            yield piece


def to_bfloat16_bytes(values: np.ndarray) -> bytes:
    """Return float32 numbers as bfloat16 bytes: the upper half of each."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def make_byte_tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


def main() -> None:
    shape, folder = sys.argv[1:]
    print(make_random_checkpoint(shape, Path(folder)))


if __name__ == "__main__":
    main()
