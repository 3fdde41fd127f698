"""Adapters on disk, written by peft, and the same adapters loaded by peft as an oracle.

    adapter = make_tiny_adapter(base, rank=4, target_modules=["q_proj"])
    oracle = load_with_adapter(base, adapter)
"""

import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

ADAPTER_WEIGHT_SCALE = 0.3  # scale of an adapter's weights: its output differs clearly from that of its base model


def make_tiny_adapter(base: Path, *, seed: int = 0, dtype: str = "float32", **config: Any) -> Path:
    """Write an adapter beside the folder of `base`, unless the same one exists, and return its folder.

    `config` are fields of peft's `LoraConfig`; by default every linear but the head is a target.
    """
    cache_key = json.dumps([seed, dtype, config], sort_keys=True)
    target = base.parent / f"{base.name}-adapter-{hashlib.sha256(cache_key.encode()).hexdigest()[:12]}"
    if not target.exists():
        model = AutoModelForCausalLM.from_pretrained(base)
        with suppress_peft_warnings():
            adapted = get_peft_model(model, LoraConfig(**{"target_modules": find_linear_names(model)} | config))
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if re.search("lora_|modules_to_save", name):
                width = min(parameter.shape) if "lora_" in name else parameter.shape[-1]
                parameter.data.normal_(0, ADAPTER_WEIGHT_SCALE * width ** -0.5, generator=generator)
        adapted.create_or_update_model_card = lambda _: None  # takes as long as the weights
        with suppress_peft_warnings():
            adapted.to(getattr(torch, dtype)).save_pretrained(target, save_embedding_layers=False)
    return target


def find_linear_names(model: nn.Module) -> list[str]:
    """Return the names of all linears but the head."""
    names = {name.rsplit(".", maxsplit=1)[-1] for name, part in model.named_modules()
             if isinstance(part, nn.Linear | Conv1D)}
    return sorted(names - {"lm_head", "embed_out"})


@contextmanager
def suppress_peft_warnings() -> Iterator[None]:
    """Suppress the deprecation warnings that peft gets from transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lru_cache(maxsize=4)
def load_with_adapter(base: Path, adapter: Path | None) -> PreTrainedModel:
    """Load the base model, with the adapter if there is one; generation does not stop at the end token."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32")
    model.generation_config.eos_token_id = None
    if adapter is None:
        return model
    with suppress_peft_warnings():
        return PeftModel.from_pretrained(model, adapter).eval()
