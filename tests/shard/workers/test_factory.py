"""`make_worker` returns the worker class that a model needs."""

from pathlib import Path

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint, make_tiny_encoder

from shard.config import ShardConfig
from shard.workers.decoder import DecoderWorker
from shard.workers.encoder import EncoderWorker
from shard.workers.factory import make_worker


def make_config(folder: Path) -> ShardConfig:
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_encoder_checkpoint_gets_an_encoder_worker(tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = make_worker(make_config(make_tiny_encoder(tmp_path_factory.getbasetemp(), "bert")))
    assert isinstance(worker, EncoderWorker)
    info = worker.info()
    assert (info.generation, info.embeddings, info.classification) == (False, True, False)


def test_decoder_checkpoint_gets_a_decoder_worker_that_embeds_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = make_worker(make_config(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")))
    assert isinstance(worker, DecoderWorker)
    info = worker.info()
    assert (info.generation, info.embeddings, info.classification) == (True, True, False)


def test_folder_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        make_worker(make_config(tmp_path))
