"""Tests that encoders embed and label texts on a GPU as transformers does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import ENCODER_FAMILIES, make_tiny_encoder
from support.model_runs.encoder_reference import RANDOM_TEXTS
from support.shards.protocol_messages import get_embeddings, get_labels_by_text, make_embed
from torch import Tensor
from transformers import AutoModel, AutoModelForTokenClassification

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.workers.encoder import EncoderWorker

pytestmark = pytest.mark.gpu

WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=512, max_batch_size=8, max_total_tokens=128)
TOLERANCE_BY_DTYPE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.02}
TEXTS = [text.tokens for text in RANDOM_TEXTS]


@pytest.fixture(params=ENCODER_FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_worker(folder: Path, device: str, dtype: str) -> EncoderWorker:
    worker = EncoderWorker(ShardConfig(model=str(folder), device=device, dtype=dtype))
    worker.warmup(WARMUP_REQUEST)
    return worker


@torch.inference_mode()
def run_transformers(model_class: Any, folder: Path, device: str) -> list[Any]:
    """Return the output of transformers for each text alone, in float32."""
    model = model_class.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    return [model(torch.tensor([tokens], device=device)) for tokens in TEXTS]


@pytest.mark.parametrize("dtype", TOLERANCE_BY_DTYPE)
def test_embeddings_match_transformers(tmp_path_factory: pytest.TempPathFactory, family: str, device: str,
                                       dtype: str) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), family)
    embeddings = get_embeddings(make_worker(folder, device, dtype).embed(make_embed(*TEXTS)))
    for embedding, output in zip(embeddings, run_transformers(AutoModel, folder, device), strict=True):
        expected: Tensor = output.last_hidden_state[0].mean(0).cpu()
        tolerance = TOLERANCE_BY_DTYPE[dtype] * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(torch.tensor(embedding), expected, rtol=0, atol=tolerance)


def test_labels_match_transformers(tmp_path_factory: pytest.TempPathFactory, family: str, device: str) -> None:
    folder = make_tiny_encoder(tmp_path_factory.getbasetemp(), family, labels=True)
    answer = make_worker(folder, device, "float32").embed(make_embed(*TEXTS, wanted=pb.LABELS))
    for pairs, output in zip(get_labels_by_text(answer), run_transformers(AutoModelForTokenClassification, folder,
                                                                          device), strict=True):
        scores, labels = output.logits[0].softmax(-1).max(-1)
        assert [label for label, _ in pairs] == labels.tolist()
        torch.testing.assert_close(torch.tensor([score for _, score in pairs]), scores.cpu(), rtol=1e-3, atol=1e-3)
