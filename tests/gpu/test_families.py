"""Tests that every family of models, with experts, windows and caps too, computes on a GPU what transformers does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import FALLBACK_FAMILIES, MODEL_FAMILIES, make_tiny_checkpoint
from support.model_runs.generation import (
    PROMPTS,
    check_tokens,
    compute_prompt_logprobs,
    compute_reference_prompt_logprobs,
    generate_beside_decodes,
    generate_in_batch,
    run_decoder_worker,
)
from torch import Tensor
from transformers import AutoModelForCausalLM

from shard.pb import shard_pb2 as pb

pytestmark = pytest.mark.gpu

FAMILIES = [*MODEL_FAMILIES, *FALLBACK_FAMILIES]
DTYPES = "bfloat16", pytest.param("float16", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="float16 is no type for models on a CPU"))
LOGPROB_NOISE = 0.01  # added to the error that is allowed


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


def load_transformers_model(checkpoint: Path, device: str, dtype: str) -> Any:
    """Load with the attention that applies every cap: the default one of transformers 5.17 leaves them out."""
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype),
                                                      attn_implementation="eager")
    return model.to(device).eval()


def compute_median(distances: Tensor) -> float:
    """Return the median: rounding may send single tokens to other experts."""
    return float(distances.abs().median())


def test_float32_tokens_match_transformers(checkpoint: Path, device: str) -> None:
    transformers_model = load_transformers_model(checkpoint, device, "float32")
    with run_decoder_worker(checkpoint, device, "float32") as worker:
        for prompt, output in zip(PROMPTS, generate_in_batch(worker, *PROMPTS), strict=True):
            check_tokens(transformers_model, prompt, output, tolerance=1e-4)
        worker.reset(pb.ResetRequest(epoch=1))
        output = generate_beside_decodes(worker, PROMPTS[0], PROMPTS[3], 24)
    check_tokens(transformers_model, PROMPTS[3], output, tolerance=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_of_16_bits_is_that_of_transformers(checkpoint: Path, device: str, dtype: str) -> None:
    exact, rounded = (compute_reference_prompt_logprobs(load_transformers_model(checkpoint, device, name), PROMPTS[1])
                      for name in ("float32", dtype))
    with run_decoder_worker(checkpoint, device, dtype) as worker:
        logprobs = compute_prompt_logprobs(worker, PROMPTS[1])
    assert compute_median(logprobs - exact) < 1.5 * compute_median(rounded - exact) + LOGPROB_NOISE
