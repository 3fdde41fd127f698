"""`make_worker` returns the worker class that a model needs."""

from pathlib import Path

import pytest
from support.small_checkpoints import tiny_checkpoint, tiny_encoder

from shard.config import ShardConfig
from shard.workers.decoder import ModelWorker
from shard.workers.encoder import EncoderWorker
from shard.workers.factory import make_worker


def config(folder: Path) -> ShardConfig:
    return ShardConfig(model=str(folder), device="cpu", threads=1)


def test_an_encoder_generates_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = make_worker(config(tiny_encoder(tmp_path_factory.getbasetemp(), "bert")))
    assert isinstance(worker, EncoderWorker)
    info = worker.info()
    assert (info.generation, info.embeddings, info.classification) == (False, True, False)


def test_a_model_that_generates_embeds_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    worker = make_worker(config(tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")))
    assert isinstance(worker, ModelWorker)
    info = worker.info()
    assert (info.generation, info.embeddings, info.classification) == (True, True, False)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        make_worker(config(tmp_path))
