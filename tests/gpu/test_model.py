"""Tests that whole models on a GPU generate the tokens of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import LLAMA3_ROPE, YARN_ROPE, make_tiny_checkpoint
from support.shards.protocol_messages import SequenceRow, get_tokens_by_sequence, make_chunks, make_decode, make_prefill
from torch import Tensor
from transformers import AutoModelForCausalLM

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.workers.decoder import DecoderWorker

pytestmark = pytest.mark.gpu

NUM_NEW_TOKENS = 32
PROMPTS = [[(7 * i + 11 * length) % 400 + 2 for i in range(length)] for length in (5, 130, 17, 64)]
MODEL_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama, tied": {"family": "llama", "rope_parameters": YARN_ROPE, "tie_word_embeddings": True},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
# where the best two logits are closer, either token may be chosen
LOGIT_TOLERANCE_BY_DTYPE = {"float32": 0.0, "bfloat16": 0.25}
WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=256, max_batch_size=8, max_total_tokens=256,
                                  max_cache_tokens=2048)


@pytest.fixture(scope="module", params=LOGIT_TOLERANCE_BY_DTYPE)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=MODEL_OPTIONS)
def checkpoint(request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), dtype=dtype, **MODEL_OPTIONS[request.param])


@pytest.fixture(scope="module")
def worker(checkpoint: Path, dtype: str, device: str) -> Iterator[DecoderWorker]:
    worker = DecoderWorker(ShardConfig(model=str(checkpoint), device=device, dtype=dtype))
    worker.warmup(WARMUP_REQUEST)
    yield worker
    worker.close()


@pytest.fixture
def fresh_worker(worker: DecoderWorker) -> DecoderWorker:
    worker.reset(pb.ResetRequest(epoch=1))
    return worker


@pytest.fixture(scope="module")
def transformers_model(checkpoint: Path, dtype: str, device: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).to(device).eval()


def make_rows(*prompts: list[int]) -> list[SequenceRow]:
    """Return rows with blocks for their prompt and twice NUM_NEW_TOKENS."""
    blocks = iter(range(128))
    return [SequenceRow(i, prompt, [next(blocks) for _ in range(-(-(len(prompt) + 2 * NUM_NEW_TOKENS) // 16))])
            for i, prompt in enumerate(prompts)]


class GeneratedTokens(dict[int, list[int]]):
    """Tokens generated so far, by sequence."""

    def add_answer(self, answer: pb.StepAnswer | PendingResult[pb.StepAnswer]) -> None:
        if isinstance(answer, PendingResult):  # of a step replayed on a GPU
            answer.wait()
            answer = answer.finish()
        for i, tokens in get_tokens_by_sequence(answer).items():
            self.setdefault(i, []).extend(tokens)


@torch.inference_mode()
def compute_reference_logits(transformers_model: Any, prompt: list[int], output_tokens: list[int]) -> Tensor:
    """Return the logits from which transformers would choose each token: [tokens, vocabulary]."""
    ids = torch.tensor([prompt + output_tokens], device=transformers_model.device)
    logits: Tensor = transformers_model(ids).logits[0, len(prompt) - 1:-1]
    return logits.float()


def check_output(transformers_model: Any, prompt: list[int], output_tokens: list[int], dtype: str) -> None:
    assert len(output_tokens) == NUM_NEW_TOKENS
    for token, row in zip(output_tokens, compute_reference_logits(transformers_model, prompt, output_tokens),
                          strict=True):
        best, second = row.topk(2).values.tolist()
        if best - second < LOGIT_TOLERANCE_BY_DTYPE[dtype]:
            return
        assert token == int(row.argmax())


def test_batched_prompts_match_transformers(fresh_worker: DecoderWorker, transformers_model: Any, dtype: str) -> None:
    outputs = GeneratedTokens()
    outputs.add_answer(fresh_worker.prefill(make_prefill(1, *make_rows(*PROMPTS))))
    for _ in range(NUM_NEW_TOKENS - 1):
        outputs.add_answer(fresh_worker.decode(make_decode(1)))
    for i, prompt in enumerate(PROMPTS):
        check_output(transformers_model, prompt, outputs[i], dtype)


@pytest.mark.parametrize("size", [1, 16, 45])
def test_prompt_in_chunks_beside_decodes_matches_transformers(fresh_worker: DecoderWorker, transformers_model: Any,
                                                              dtype: str, size: int) -> None:
    decoding_row, chunked_row = make_rows(PROMPTS[0], PROMPTS[1][:50])
    outputs, length = GeneratedTokens(), len(chunked_row.tokens)
    outputs.add_answer(fresh_worker.prefill(make_prefill(1, decoding_row)))
    outputs.add_answer(fresh_worker.prefill(make_prefill(1, chunked_row, chunk_rows=[(1, 0, size)], alongside=True)))
    for start in range(size, length, size):
        chunk = make_chunks((1, start, min(size, length - start)))
        outputs.add_answer(fresh_worker.prefill(pb.PrefillRequest(batch=1, chunks=chunk, alongside=True)))
    outputs.add_answer(fresh_worker.decode(make_decode(1, keep=pb.Keep(sequences=[1]))))
    while len(outputs[1]) < NUM_NEW_TOKENS:
        outputs.add_answer(fresh_worker.decode(make_decode(1)))
    check_output(transformers_model, chunked_row.tokens, outputs[1], dtype)


def test_prompt_logprobs_match_transformers(fresh_worker: DecoderWorker, transformers_model: Any, dtype: str) -> None:
    prompt = PROMPTS[3]
    row = SequenceRow(0, prompt, range(6), prompt_logprobs=True)
    logprobs = torch.tensor(fresh_worker.prefill(make_prefill(1, row)).prompt_logprobs)
    expected = compute_reference_logits(transformers_model, prompt[:1], prompt[1:]).log_softmax(-1).cpu()
    assert len(logprobs) == len(prompt) - 1
    difference = logprobs - expected[torch.arange(len(logprobs)), torch.tensor(prompt[1:])]
    assert difference.abs().max() < (1e-3 if dtype == "float32" else 0.5)
