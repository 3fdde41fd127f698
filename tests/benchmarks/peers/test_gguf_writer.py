"""Tests of GGUF files, read back by a reader of this test's own and compared with the checkpoint."""

import json
import struct
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, iter_tensor_shapes, write_random_safetensors
from benchmarks.peers.gguf_writer import write_gguf
from benchmarks.peers.models import write_full_tokenizer

SCALAR_FORMATS = {4: "<I", 5: "<i", 6: "<f", 7: "<?"}
CONFIG = MODEL_CONFIGS["qwen2.5-0.5b"] | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    write_full_tokenizer(tmp_path, CONFIG["vocab_size"])
    write_random_safetensors(tmp_path / "model.safetensors", dict(iter_tensor_shapes(CONFIG)))
    return tmp_path


def unpack(file: BinaryIO, layout: str) -> Any:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))[0]


def read_string(file: BinaryIO) -> str:
    return file.read(unpack(file, "<Q")).decode()


def read_value(file: BinaryIO, value_type: int) -> Any:
    if value_type == 8:
        return read_string(file)
    if value_type == 9:
        item_type, length = unpack(file, "<I"), unpack(file, "<Q")
        return [read_value(file, item_type) for _ in range(length)]
    return unpack(file, SCALAR_FORMATS[value_type])


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"
        assert unpack(file, "<I") == 3
        num_tensors, num_values = unpack(file, "<Q"), unpack(file, "<Q")
        metadata = {read_string(file): read_value(file, unpack(file, "<I")) for _ in range(num_values)}
        entries = []
        for _ in range(num_tensors):
            name, num_dimensions = read_string(file), unpack(file, "<I")
            shape = [unpack(file, "<Q") for _ in range(num_dimensions)][::-1]
            entries.append((name, shape, unpack(file, "<I"), unpack(file, "<Q")))
        start, data, tensors = -(-file.tell() // 32) * 32, path.read_bytes(), dict[str, torch.Tensor]()
        for name, shape, tensor_type, offset in entries:
            assert offset % 32 == 0
            dtype = {0: torch.float32, 30: torch.bfloat16}[tensor_type]
            tensors[name] = torch.frombuffer(bytearray(data), dtype=dtype, count=prod(shape),
                                             offset=start + offset).reshape(shape)
    return metadata, tensors


def test_file_has_the_tensors_of_the_checkpoint(checkpoint: Path) -> None:
    write_gguf(checkpoint, checkpoint / "model.gguf")
    _, tensors = read_gguf(checkpoint / "model.gguf")
    source = load_file(checkpoint / "model.safetensors")
    assert len(tensors) == len(source)
    assert torch.equal(tensors["token_embd.weight"], source["model.embed_tokens.weight"])
    assert torch.equal(tensors["blk.1.ffn_down.weight"], source["model.layers.1.mlp.down_proj.weight"])
    assert torch.equal(tensors["blk.0.attn_q.bias"], source["model.layers.0.self_attn.q_proj.bias"].float())
    assert torch.equal(tensors["output_norm.weight"], torch.ones(64))


def test_metadata_describes_model_and_tokenizer(checkpoint: Path) -> None:
    write_gguf(checkpoint, checkpoint / "model.gguf")
    metadata, _ = read_gguf(checkpoint / "model.gguf")
    assert metadata["general.architecture"] == "qwen2"
    assert metadata["qwen2.attention.head_count_kv"] == 2
    assert metadata["qwen2.rope.freq_base"] == 1000000.0
    assert len(metadata["tokenizer.ggml.tokens"]) == 300
    assert metadata["tokenizer.ggml.tokens"][256] == "<end>"
    assert metadata["tokenizer.ggml.token_type"][255:258] == [1, 3, 1]
    assert metadata["tokenizer.ggml.merges"] == ["Ċ Ċ"]


def test_other_architectures_are_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps(CONFIG | {"model_type": "llama"}))
    with pytest.raises(ValueError, match="for qwen2 only, got llama"):
        write_gguf(checkpoint, checkpoint / "model.gguf")


def test_tokenizer_with_too_few_tokens_is_refused(checkpoint: Path) -> None:
    write_full_tokenizer(checkpoint, 299)
    with pytest.raises(ValueError, match="the model has 300 tokens, its tokenizer 299"):
        write_gguf(checkpoint, checkpoint / "model.gguf")
