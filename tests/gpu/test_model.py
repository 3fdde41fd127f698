"""Tests that whole models on a GPU generate the tokens of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import LLAMA3_ROPE, YARN_ROPE, make_tiny_checkpoint
from support.model_runs.generation import (
    PROMPTS,
    check_tokens,
    compute_prompt_logprobs,
    compute_reference_prompt_logprobs,
    generate_beside_decodes,
    generate_in_batch,
    run_decoder_worker,
)
from transformers import AutoModelForCausalLM

from shard.errors import StepOutOfMemory
from shard.pb import shard_pb2 as pb
from shard.workers.decoder import DecoderWorker

pytestmark = pytest.mark.gpu

MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama, tied": {"family": "llama", "rope_parameters": YARN_ROPE, "tie_word_embeddings": True},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
# where the best two logits are closer, either token may be chosen
LOGIT_TOLERANCE_BY_DTYPE = {"float32": 0.0, "bfloat16": 0.25, "float16": 0.25}  # on a CPU float16 runs as bfloat16


@pytest.fixture(scope="module", params=LOGIT_TOLERANCE_BY_DTYPE)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=MODEL_OPTIONS)
def checkpoint(request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), dtype=dtype, **MODEL_OPTIONS[request.param])


@pytest.fixture(scope="module")
def worker(checkpoint: Path, dtype: str, device: str) -> Iterator[DecoderWorker]:
    with run_decoder_worker(checkpoint, device, dtype) as worker:
        yield worker


@pytest.fixture
def fresh_worker(worker: DecoderWorker) -> DecoderWorker:
    worker.reset(pb.ResetRequest(epoch=1))
    return worker


@pytest.fixture(scope="module")
def transformers_model(checkpoint: Path, dtype: str, device: str) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype))
    return model.to(device).eval()


def test_batched_prompts_match_transformers(fresh_worker: DecoderWorker, transformers_model: Any, dtype: str) -> None:
    for prompt, output in zip(PROMPTS, generate_in_batch(fresh_worker, *PROMPTS), strict=True):
        check_tokens(transformers_model, prompt, output, LOGIT_TOLERANCE_BY_DTYPE[dtype])


@pytest.mark.parametrize("size", [1, 16, 45])
def test_prompt_in_chunks_beside_decodes_matches_transformers(fresh_worker: DecoderWorker, transformers_model: Any,
                                                              dtype: str, size: int) -> None:
    prompt = PROMPTS[1][:50]
    output = generate_beside_decodes(fresh_worker, PROMPTS[0], prompt, size)
    check_tokens(transformers_model, prompt, output, LOGIT_TOLERANCE_BY_DTYPE[dtype])


def test_prompt_logprobs_match_transformers(fresh_worker: DecoderWorker, transformers_model: Any, dtype: str) -> None:
    difference = (compute_prompt_logprobs(fresh_worker, PROMPTS[3])
                  - compute_reference_prompt_logprobs(transformers_model, PROMPTS[3]))
    assert difference.abs().max() < (1e-3 if dtype == "float32" else 0.5)


def test_step_without_memory_fails_and_the_next_one_is_right(
        fresh_worker: DecoderWorker, transformers_model: Any, dtype: str, device: str,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_worker._loaded_model.runner, "run", lambda *_: torch.empty(2**50, device=device))
    with pytest.raises(StepOutOfMemory, match="memory"):
        generate_in_batch(fresh_worker, *PROMPTS)
    monkeypatch.undo()
    fresh_worker.reset(pb.ResetRequest(epoch=1))
    for prompt, output in zip(PROMPTS, generate_in_batch(fresh_worker, *PROMPTS), strict=True):
        check_tokens(transformers_model, prompt, output, LOGIT_TOLERANCE_BY_DTYPE[dtype])
