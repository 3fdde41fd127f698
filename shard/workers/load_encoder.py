"""Loading of an encoder from settings, as `load_decoder.py` does for models that generate.

Every user error is a ValueError.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shard.config import ShardConfig
from shard.models.encoder import EncoderConfig
from shard.models.registry import load_encoder, read_model_config
from shard.runner.encoder_exactness_gate import find_difference
from shard.runner.encoder_runner import EncoderRunner
from shard.runner.pooling import read_pooling
from shard.telemetry.startup_progress import OnProgress, ignore_progress
from shard.workers.model_loading import LoadContext, prepare_loading


@dataclass(frozen=True)
class LoadedEncoder(LoadContext):
    """An encoder with all that runs it."""

    config: EncoderConfig
    runner: EncoderRunner
    inexact_reason: str  # why answers may depend on the rest of the batch, or empty


def load_encoder_model(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> LoadedEncoder:
    folder = Path(config.model)
    model_config = read_model_config(folder)
    assert isinstance(model_config, EncoderConfig)
    pooling = read_pooling(folder, "mean", model_config.hidden_size, config.embedding_dim)
    context = prepare_loading(config, model_config)
    model = context.load_from_weights(model_config, on_progress, load_encoder)
    inexact_reason = context.check_exactness(model_config, on_progress,
                                             partial(find_difference, model.copy_first_layers(1), context.device))
    runner = EncoderRunner(model, pooling, context.adapter_registry.adapter_routing, context.device)
    return LoadedEncoder(**vars(context), config=model_config, runner=runner, inexact_reason=inexact_reason)
