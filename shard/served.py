"""The worker that a model needs: whether it generates, or is an encoder. Loads torch."""

from pathlib import Path

from shard.checkpoint import read_config
from shard.config import ShardConfig
from shard.encoder_worker import EncoderWorker
from shard.models.encoder import EncoderConfig
from shard.progress import OnProgress, untold
from shard.worker import ModelWorker


def make_worker(config: ShardConfig, on_progress: OnProgress = untold) -> ModelWorker | EncoderWorker:
    """Raises ValueError when the model cannot be served."""
    if isinstance(read_config(Path(config.model)), EncoderConfig):
        return EncoderWorker(config, on_progress=on_progress)
    return ModelWorker(config, on_progress=on_progress)
