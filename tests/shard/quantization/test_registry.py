from typing import Any

import pytest
from support.checkpoints.quantized_checkpoints import AwqTool, CompressedTensorsTool, Fp8Tool, GptqTool

from shard.quantization.registry import CONFIG_PARSERS, parse_quantization_config

PACKED_CONFIG = CompressedTensorsTool().config
WEIGHT_GROUP = PACKED_CONFIG["config_groups"]["group_0"]
REJECTED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "bitsandbytes"}, "quantized as bitsandbytes are not supported; supported: gptq, awq, fp8"),
    ({"quant_method": "gguf"}, "quantized as gguf are not supported"),
    ({"load_in_4bit": True}, "quantized as something that quant_method does not name"),
    (GptqTool(bits=3).config, "bits 3 is not supported; supported: 4, 8"),
    (GptqTool(checkpoint_format="marlin").config,
     "checkpoint_format marlin is not supported; supported: gptq, gptq_v2"),
    (GptqTool().config | {"dynamic": {"+:mlp": {"bits": 8}}}, r"dynamic gives \+:mlp a quantization of its own"),
    (GptqTool().config | {"pack_dtype": "int8"}, "pack_dtype int8 is not supported; supported: int32"),
    (GptqTool(group_size=0).config, "group_size must be -1 or a whole number of at least 1, got 0"),
    (AwqTool().config | {"version": "gemv"}, "version gemv is not supported; supported: gemm"),
    (AwqTool().config | {"bits": 8}, "bits 8 is not supported; supported: 4"),
    (Fp8Tool().config | {"weight_block_size": [128]}, r"weight_block_size must be two whole numbers .* got \[128\]"),
    (Fp8Tool().config | {"fmt": "e3m4"}, "fmt e3m4 is not supported; supported: e4m3, e5m2"),
    (PACKED_CONFIG | {"format": "nvfp4-pack-quantized"}, "format nvfp4-pack-quantized is not supported; supported: "),
    (PACKED_CONFIG | {"config_groups": {}}, "config_groups names no quantized weights"),
    (PACKED_CONFIG | {"sparsity_config": {"format": "sparse-24-bitmask"}},
     "sparsity_config: format sparse-24-bitmask is not"),
    (PACKED_CONFIG | {"config_groups": {"a": WEIGHT_GROUP | {"weights": {"num_bits": 3}}}},
     "num_bits 3 is not supported; supp"),
    (PACKED_CONFIG | {"config_groups": {"a": WEIGHT_GROUP | {"weights": {"num_bits": 4, "type": "float"}}}},
     "num_bits 4 is not"),
    (PACKED_CONFIG | {"config_groups": {"a": WEIGHT_GROUP | {"weights": {"num_bits": 8, "strategy": "tensor_group"}}}},
     "strategy tensor_group is not supported; supported: tensor, channel, group, block"),
]


@pytest.mark.parametrize(("values", "complaint"), REJECTED_CONFIGS,
                         ids=[complaint[:40] for _, complaint in REJECTED_CONFIGS])
def test_unsupported_quantization_is_rejected_by_name(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=rf"^config\.json: .*{complaint}"):
        parse_quantization_config(values, "config.json")


def test_quantization_config_may_be_absent_but_not_invalid() -> None:
    assert parse_quantization_config(None, "config.json") is None
    with pytest.raises(ValueError, match="quantization_config must be an object, got 'gptq'"):
        parse_quantization_config("gptq", "config.json")


CONFIG_BY_DESCRIPTION = {
    "GPTQ, 4 bits, groups of 32": GptqTool().config,
    "GPTQ, 8 bits, no groups": GptqTool(bits=8, group_size=-1).config | {"dynamic": {"-:lm_head": {}}},
    "AWQ, 4 bits, groups of 128": {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
    "fp8 in blocks of 32 x 24, activations not quantized": Fp8Tool("block").config,
    "compressed-tensors, pack-quantized, 4 bits, activations not quantized": PACKED_CONFIG,
}


@pytest.mark.parametrize("note", CONFIG_BY_DESCRIPTION)
def test_quantization_is_described(note: str) -> None:
    form = parse_quantization_config(CONFIG_BY_DESCRIPTION[note], "config.json")
    assert form is not None
    assert form.description == note


def test_every_method_has_a_description_here() -> None:
    assert {values["quant_method"] for values in CONFIG_BY_DESCRIPTION.values()} == set(CONFIG_PARSERS)
