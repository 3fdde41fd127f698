"""Factory of the worker for a model that generates or for an encoder. Importing this module loads torch."""

from pathlib import Path

from shard.config import ShardConfig
from shard.models.encoder import EncoderConfig
from shard.models.registry import load_model_config
from shard.telemetry.startup_progress import OnProgress, ignore_progress
from shard.workers.decoder import DecoderWorker
from shard.workers.encoder import EncoderWorker


def make_worker(config: ShardConfig, on_progress: OnProgress = ignore_progress) -> DecoderWorker | EncoderWorker:
    """Make the worker for the model; raises ValueError if it cannot be served."""
    if isinstance(load_model_config(Path(config.model)), EncoderConfig):
        return EncoderWorker(config, on_progress=on_progress)
    return DecoderWorker(config, on_progress=on_progress)
