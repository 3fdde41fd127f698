import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from launcher.hub import config_check
from launcher.hub.config_check import check_model_config, check_weight_files
from shard.models.registry import DECODER_ARCHITECTURES, ENCODER_ARCHITECTURES
from shard.quantization.registry import CONFIG_PARSERS

TRANSFORMERS = version("transformers")


@pytest.mark.parametrize("text", [
    '{"architectures": ["LlamaForCausalLM"]}', '{"architectures": ["GPT2LMHeadModel"]}',
    '{"architectures": ["BertModel"]}', '{"architectures": ["XLMRobertaForTokenClassification"]}',
    '{"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}'])
def test_what_the_shards_may_serve_passes(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    check_model_config(tmp_path)


@pytest.mark.parametrize("architecture", [*DECODER_ARCHITECTURES, *ENCODER_ARCHITECTURES, "OlmoForCausalLM"])
def test_every_architecture_with_code_in_weft_passes(tmp_path: Path, architecture: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    check_model_config(tmp_path)


def test_list_of_language_models_is_that_of_transformers_and_of_weft() -> None:
    own = {*DECODER_ARCHITECTURES, *ENCODER_ARCHITECTURES}
    assert {*config_check.list_supported_architectures()} == own | {
        name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}
    assert own - {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()} <= {*config_check.OWN_ARCHITECTURES} <= own


def test_any_name_passes_where_the_list_of_transformers_is_not_found(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_check, "find_spec", lambda _: None)
    (tmp_path / "config.json").write_text('{"architectures": ["LoomForCausalLM"]}')
    check_model_config(tmp_path)


@pytest.mark.parametrize(("text", "reason"), [
    ("{", "config.json is not JSON: "), ("[" * 100_000, "config.json is not JSON: "),
    ("[]", "config.json is no JSON object"),
    ('{"architectures": "LlamaForCausalLM"}', "architectures must be a list of names, got 'LlamaForCausalLM'"),
    ('{"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": true}',
     "architecture T5ForConditionalGeneration is not supported: it is an encoder-decoder; docs/models.md lists"),
    ('{"architectures": []}', "has no `architectures`, which names the kind of model"),
    ("{}", "has no `architectures`"),
    ('{"architectures": ["MambaForCausalLM"]}', "MambaForCausalLM is not supported: it keeps a state other than keys"),
    ('{"architectures": ["LoomForCausalLM"]}', f"LoomForCausalLM is not supported: transformers {TRANSFORMERS} has no "
     "language model of this name; docs/models.md lists"),
    ('{"architectures": ["T5ForConditionalGeneration"]}', f"transformers {TRANSFORMERS} has no language model of this"),
    ('{"architectures": ["LlamaForCasualLM"]}', "no model has this name; the most similar is LlamaForCausalLM; docs/"),
    ('{"architectures": ["LoomForCausalLM"], "auto_map": {"AutoModel": "loom.Loom"}}',
     "has no language model of this name; code that comes with a model is never run; docs/models.md lists"),
    ('{"architectures": ["ViTForImageClassification"]}', "it does not generate text, embed it or label its tokens"),
])
def test_what_cannot_be_served_is_refused_with_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_model_config(tmp_path)


@pytest.mark.parametrize(("fields", "num_shards", "quantize", "reason"), [
    ({"quantization_config": {"quant_method": "exl2"}}, 1, "", "weights quantized as exl2 are not supported; "
     "supported: gptq, awq, fp8, compressed-tensors, and weights that are not quantized"),
    ({"quantization_config": {}}, 1, "", "quantized as something that quant_method does not name"),
    ({"quantization_config": {"quant_method": "awq"}}, 1, "int8", "--quantize int8 is for weights that are not "
     "quantized, and these are (awq); leave it out"),
    ({"num_attention_heads": 14, "num_key_value_heads": 2}, 4, "", "4 shards cannot share 14 attention heads with 2"),
    ({"num_attention_heads": 12, "num_key_value_heads": 3}, 2, "", "2 shards cannot share 12 attention heads with 3"),
    ({"n_head": 12}, 5, "", "5 shards cannot share 12 attention heads with 12")])
def test_weights_and_shards_that_do_not_fit_are_refused(tmp_path: Path, fields: dict[str, object], num_shards: int,
                                                        quantize: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **fields}))
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_model_config(tmp_path, num_shards, quantize)


@pytest.mark.parametrize(("fields", "num_shards", "quantize"), [
    ({"quantization_config": {"quant_method": method}}, 1, "") for method in CONFIG_PARSERS] + [
    ({"quantization_config": None}, 1, "int4"), ({"num_attention_heads": 14, "num_key_value_heads": 2}, 2, ""),
    ({"num_attention_heads": 32, "num_key_value_heads": 4}, 8, ""), ({"num_attention_heads": "many"}, 3, ""),
    ({"multi_query": True, "num_attention_heads": 71}, 71, "")])
def test_weights_and_shards_that_fit_pass(tmp_path: Path, fields: dict[str, object], num_shards: int,
                                          quantize: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **fields}))
    check_model_config(tmp_path, num_shards, quantize)


def test_ways_to_quantize_are_those_of_the_shards() -> None:
    assert tuple(CONFIG_PARSERS) == config_check.QUANTIZATION_METHODS


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff{}")
    with pytest.raises(ValueError, match="is not JSON"):
        check_model_config(tmp_path)


@pytest.mark.parametrize(("num_bytes", "reason"), [
    (-1, "two.safetensors: the file ends 1 bytes before x does; is the download complete?"),
    (3, "two.safetensors: the file has no header, only 3 bytes; is the download complete?")])
def test_truncated_weights_are_refused_by_name(tmp_path: Path, num_bytes: int, reason: str) -> None:
    for name in ("one", "two"):
        save_file({"x": torch.ones(4)}, tmp_path / f"{name}.safetensors")
    check_weight_files(tmp_path)
    path = tmp_path / "two.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=re.escape(reason)):
        check_weight_files(tmp_path)
