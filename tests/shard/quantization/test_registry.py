from typing import Any

import pytest
from support.quantized_checkpoints import Awq, Compressed, Fp8, Gptq

from shard.quantization.registry import METHODS, read_quantization

PACKED = Compressed().config
GROUP = PACKED["config_groups"]["group_0"]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, "quantised as bitsandbytes are not supported; supported: gptq, awq, fp8"),
    ({"quant_method": "gguf"}, "quantised as gguf are not supported"),
    ({"load_in_4bit": True}, "quantised as something that quant_method does not name"),
    (Gptq(bits=3).config, "bits 3 is not supported; supported: 4, 8"),
    (Gptq(checkpoint_format="marlin").config, "checkpoint_format marlin is not supported; supported: gptq, gptq_v2"),
    (Gptq().config | {"dynamic": {"+:mlp": {"bits": 8}}}, r"dynamic gives \+:mlp a quantisation of its own"),
    (Gptq().config | {"pack_dtype": "int8"}, "pack_dtype int8 is not supported; supported: int32"),
    (Gptq(group_size=0).config, "group_size must be -1 or a whole number of at least 1, got 0"),
    (Awq().config | {"version": "gemv"}, "version gemv is not supported; supported: gemm"),
    (Awq().config | {"bits": 8}, "bits 8 is not supported; supported: 4"),
    (Fp8().config | {"weight_block_size": [128]}, r"weight_block_size must be two whole numbers .* got \[128\]"),
    (Fp8().config | {"fmt": "e3m4"}, "fmt e3m4 is not supported; supported: e4m3, e5m2"),
    (PACKED | {"format": "nvfp4-pack-quantized"}, "format nvfp4-pack-quantized is not supported; supported: "),
    (PACKED | {"config_groups": {}}, "config_groups names no quantised weights"),
    (PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: format sparse-24-bitmask is not"),
    (PACKED | {"config_groups": {"a": GROUP | {"weights": {"num_bits": 3}}}}, "num_bits 3 is not supported; supp"),
    (PACKED | {"config_groups": {"a": GROUP | {"weights": {"num_bits": 4, "type": "float"}}}}, "num_bits 4 is not"),
    (PACKED | {"config_groups": {"a": GROUP | {"weights": {"num_bits": 8, "strategy": "tensor_group"}}}},
     "strategy tensor_group is not supported; supported: tensor, channel, group, block"),
]


@pytest.mark.parametrize(("values", "complaint"), REFUSED, ids=[complaint[:40] for _, complaint in REFUSED])
def test_what_cannot_be_read_is_named(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"^config\.json: .*{complaint}"):
        read_quantization(values, "config.json")


def test_a_checkpoint_without_quantisation_has_none() -> None:
    assert read_quantization(None, "config.json") is None
    with pytest.raises(ValueError, match="quantization_config must be an object, got 'gptq'"):
        read_quantization("gptq", "config.json")


NOTES = {
    "GPTQ, 4 bits, groups of 32": Gptq().config,
    "GPTQ, 8 bits, no groups": Gptq(bits=8, group_size=-1).config | {"dynamic": {"-:lm_head": {}}},
    "AWQ, 4 bits, groups of 128": {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
    "fp8 in blocks of 32 x 24, activations not quantised": Fp8("block").config,
    "compressed-tensors, pack-quantized, 4 bits, activations not quantised": PACKED,
}


@pytest.mark.parametrize("note", NOTES)
def test_a_note_says_what_it_is(note: str) -> None:
    form = read_quantization(NOTES[note], "config.json")
    assert form is not None
    assert form.note == note


def test_every_method_has_its_checkpoints_here() -> None:
    assert {values["quant_method"] for values in NOTES.values()} == set(METHODS)
