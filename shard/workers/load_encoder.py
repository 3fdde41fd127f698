"""Loading of an encoder from settings, as `load_decoder.py` does for models that generate.

Every user error is a ValueError.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from shard.adapters.registry import AdapterRegistry
from shard.config import ShardConfig
from shard.hardware.device import get_device_name
from shard.hardware.probe_cache import make_probe_key
from shard.models.encoder import EncoderConfig
from shard.models.registry import load_encoder, read_model_config
from shard.parallel.group import RankGroup
from shard.runner.encoder_exactness_gate import find_difference
from shard.runner.encoder_runner import EncoderRunner
from shard.runner.pooling import read_pooling
from shard.telemetry.startup_progress import CHECK_PHASE, OnProgress, ignore_progress
from shard.workers.model_loading import find_inexact_reason, load_from_weights, prepare_loading


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder with all that runs it: runner, adapters, ranks."""

    name: str
    config: EncoderConfig
    runner: EncoderRunner
    group: RankGroup
    device: torch.device
    dtype: torch.dtype
    inexact_reason: str  # why answers may depend on the rest of the batch, or empty
    adapter_registry: AdapterRegistry
    compute_adapter_budget: Callable[[], int]  # bytes for adapters


def load_encoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedEncoder:
    folder = Path(config.model)
    model_config = read_model_config(folder)
    assert isinstance(model_config, EncoderConfig)
    pooling = read_pooling(folder, "mean", model_config.hidden_size, config.embedding_dim)
    context = prepare_loading(config, model_config)
    device, group, adapter_registry = context.device, context.group, context.adapter_registry
    model = load_from_weights(config, context, model_config, load_encoder, on_progress)
    subject = asdict(model_config) | {"dtype": context.dtype, "ranks": group.size, "device": get_device_name(device),
                                      "quantize": config.quantize, "adaptable": config.adaptable, "exact": config.exact}
    on_progress(CHECK_PHASE, 0, 0)
    find_text_difference = partial(find_difference, model.copy_first_layers(1), device)
    inexact_reason = find_inexact_reason(lambda: find_text_difference() or adapter_registry.find_batch_dependence(),
                                         group, context.probe_cache, make_probe_key(subject), is_required=config.exact)
    runner = EncoderRunner(model, pooling, adapter_registry.adapter_routing, device)
    return LoadedEncoder(config.model, model_config, runner, group, device, context.dtype, inexact_reason,
                         adapter_registry, partial(context.compute_adapter_budget, config.adapter_memory_fraction))
