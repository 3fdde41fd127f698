"""Checks of a model's config.json and of the headers of its weights that need no torch, so that a server which cannot
start says so at once.

They refuse only what the shards would refuse too, which read the files again, and completely.
"""

import json
import re
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shard.checkpoint.safetensors_file import read_file_header

# Last words of the names of models that generate text, embed it or label its tokens.
SUPPORTED_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForTokenClassification", "Model")
# First words of the names of models that keep a state instead of keys and values.
STATEFUL_BEGINNINGS = ("Bamba", "FalconMamba", "Jamba", "Mamba", "RecurrentGemma", "Rwkv", "Zamba")
ADVICE = "docs/models.md lists what weft serves"
# Architectures that weft has code for and that transformers does not list among its language models.
OWN_ARCHITECTURES = (
    "BertForTokenClassification", "BertModel", "DistilBertForTokenClassification", "DistilBertModel",
    "Gemma3ForConditionalGeneration", "XLMRobertaForTokenClassification", "XLMRobertaModel")


QUANTIZATION_METHODS = ("gptq", "awq", "fp8", "compressed-tensors")  # as the shards have them


def check_model_config(folder: Path, num_shards: int = 1, quantize: str = "") -> None:
    """Raise ValueError if config.json is damaged, or if what it describes cannot be served, not by this number of
    shards, or not with this --quantize."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object")
    names = values.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise ValueError(f"{path}: architectures must be a list of names, got {names!r}")
    if not names[0]:
        raise ValueError(f"{path} has no `architectures`, which names the kind of model; {ADVICE}")
    if reason := find_unsupported_reason(names[0], values):
        raise ValueError(f"{path}: architecture {names[0]} is not supported: {reason}; {ADVICE}")
    check_quantization(values.get("quantization_config"), path, quantize)
    check_attention_head_split(values, num_shards)


def check_quantization(quantization: object, path: Path, quantize: str) -> None:
    """Raise ValueError if the weights are quantized in a way that cannot be loaded, or should be quantized twice."""
    if not isinstance(quantization, dict):
        return  # weights as they were trained, or something that the shards refuse
    method = str(quantization.get("quant_method") or "something that quant_method does not name")
    if method not in QUANTIZATION_METHODS:
        raise ValueError(f"{path}: weights quantized as {method} are not supported; supported: "
                         f"{', '.join(QUANTIZATION_METHODS)}, and weights that are not quantized")
    if quantize:
        raise ValueError(f"--quantize {quantize} is for weights that are not quantized, and these are ({method}); "
                         "leave it out")


def check_attention_head_split(config: dict[str, Any], num_shards: int) -> None:
    """Raise ValueError if the attention heads cannot be shared by this number of shards."""
    num_heads = config.get("num_attention_heads", config.get("n_head"))
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int) or num_kv_heads < 1:
        return  # named otherwise, or something that the shards refuse
    if num_heads % num_shards or (num_kv_heads % num_shards and num_shards % num_kv_heads):
        raise ValueError(f"{num_shards} shards cannot share {num_heads} attention heads with {num_kv_heads} key/value "
                         "heads; choose a --num-shard that divides both, or divides the first and is a multiple of the "
                         "other")


def check_weight_files(folder: Path) -> None:
    """Raise ValueError if a file of weights has a damaged header, or ends before its last tensor."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                read_file_header(file, path.stat().st_size)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def find_unsupported_reason(architecture: str, config: dict[str, Any]) -> str:
    """Return why a model cannot be served, or "" where only the shards can tell."""
    if config.get("is_encoder_decoder") is True:
        return "it is an encoder-decoder"
    if architecture.startswith(STATEFUL_BEGINNINGS):
        return "it keeps a state other than keys and values"
    known_names = list_supported_architectures()
    if not known_names or architecture in known_names:
        return ""
    similar_names = get_close_matches(architecture, known_names, n=1, cutoff=0.92)
    if similar_names:
        return f"no model has this name; the most similar is {similar_names[0]}"
    if not architecture.endswith(SUPPORTED_ENDINGS):
        return "it does not generate text, embed it or label its tokens"
    own_code = "; code that comes with a model is never run" if config.get("auto_map") else ""
    return f"transformers {version('transformers')} has no language model of this name{own_code}"


def list_supported_architectures() -> list[str]:
    """Return the architectures that the shards may serve: those with code in weft, and the language models that
    transformers lists. Empty if its list is not found, which is read as text: its module imports torch."""
    spec = find_spec("transformers")
    path = Path(spec.origin if spec is not None and spec.origin else "").parent / "models/auto/modeling_auto.py"
    if not path.is_file():
        return []
    _, _, begin = path.read_text(encoding="utf-8").partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = OrderedDict(")
    names = re.findall(r'\("[^"]+", "(\w+)"\)', begin.partition("\n)\n")[0])
    return [*OWN_ARCHITECTURES, *names] if names else []
