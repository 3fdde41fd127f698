"""Tests that whole models on a GPU generate the tokens of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_checkpoints import LLAMA3, YARN, tiny_checkpoint
from torch import Tensor
from transformers import AutoModelForCausalLM

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.workers.decoder import ModelWorker
from tests.shard.messages import Row, chunks, decode, prefill, rows_of

pytestmark = pytest.mark.gpu

NUM_TOKENS = 32
PROMPTS = [[(7 * i + 11 * length) % 400 + 2 for i in range(length)] for length in (5, 130, 17, 64)]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama", "rope_parameters": LLAMA3},
    "llama, tied": {"family": "llama", "rope_parameters": YARN, "tie_word_embeddings": True},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
}
TOLERANCES = {"float32": 0.0, "bfloat16": 0.25}  # where the best two logits are closer, either token may be chosen
WARMUP = pb.WarmupRequest(block_size=16, max_prefill_tokens=256, max_batch_size=8, max_total_tokens=256,
                          max_cache_tokens=2048)


@pytest.fixture(scope="module", params=TOLERANCES)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, dtype: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), dtype=dtype, **MODELS[request.param])


@pytest.fixture(scope="module")
def worker(folder: Path, dtype: str, device: str) -> Iterator[ModelWorker]:
    worker = ModelWorker(ShardConfig(model=str(folder), device=device, dtype=dtype))
    worker.warmup(WARMUP)
    yield worker
    worker.close()


@pytest.fixture
def fresh(worker: ModelWorker) -> ModelWorker:
    worker.reset(pb.ResetRequest(epoch=1))
    return worker


@pytest.fixture(scope="module")
def oracle(folder: Path, dtype: str, device: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()


def newcomers(*prompts: list[int]) -> list[Row]:
    """Return rows with blocks for their prompt and twice NUM_TOKENS."""
    blocks = iter(range(128))
    return [Row(i, prompt, [next(blocks) for _ in range(-(-(len(prompt) + 2 * NUM_TOKENS) // 16))])
            for i, prompt in enumerate(prompts)]


class Said(dict[int, list[int]]):
    """Tokens generated so far, by sequence."""

    def hear(self, answer: pb.StepAnswer) -> None:
        for i, tokens in rows_of(answer).items():
            self.setdefault(i, []).extend(tokens)


@torch.inference_mode()
def logits_of(oracle: Any, prompt: list[int], said: list[int]) -> Tensor:
    """Return the logits from which transformers would choose each token: [tokens, vocabulary]."""
    ids = torch.tensor([prompt + said], device=oracle.device)
    logits: Tensor = oracle(ids).logits[0, len(prompt) - 1:-1]
    return logits.float()


def check(oracle: Any, prompt: list[int], said: list[int], dtype: str) -> None:
    assert len(said) == NUM_TOKENS
    for token, row in zip(said, logits_of(oracle, prompt, said), strict=True):
        best, second = row.topk(2).values.tolist()
        if best - second < TOLERANCES[dtype]:
            return
        assert token == int(row.argmax())


def test_prompts_together(fresh: ModelWorker, oracle: Any, dtype: str) -> None:
    said = Said()
    said.hear(fresh.prefill(prefill(1, *newcomers(*PROMPTS))))
    for _ in range(NUM_TOKENS - 1):
        said.hear(fresh.decode(decode(1)))
    for i, prompt in enumerate(PROMPTS):
        check(oracle, prompt, said[i], dtype)


@pytest.mark.parametrize("size", [1, 16, 45])
def test_a_prompt_in_chunks_beside_decodes(fresh: ModelWorker, oracle: Any, dtype: str, size: int) -> None:
    one, other = newcomers(PROMPTS[0], PROMPTS[1][:50])
    said, length = Said(), len(other.tokens)
    said.hear(fresh.prefill(prefill(1, one)))
    said.hear(fresh.prefill(prefill(1, other, run=[(1, 0, size)], alongside=True)))
    for start in range(size, length, size):
        chunk = chunks((1, start, min(size, length - start)))
        said.hear(fresh.prefill(pb.PrefillRequest(batch=1, chunks=chunk, alongside=True)))
    said.hear(fresh.decode(decode(1, keep=pb.Keep(sequences=[1]))))
    while len(said[1]) < NUM_TOKENS:
        said.hear(fresh.decode(decode(1)))
    check(oracle, other.tokens, said[1], dtype)


def test_prompt_logprobs(fresh: ModelWorker, oracle: Any, dtype: str) -> None:
    prompt = PROMPTS[3]
    row = Row(0, prompt, range(6), prompt_logprobs=True)
    found = torch.tensor(fresh.prefill(prefill(1, row)).prompt_logprobs)
    expected = logits_of(oracle, prompt[:1], prompt[1:]).log_softmax(-1).cpu()
    assert len(found) == len(prompt) - 1
    difference = found - expected[torch.arange(len(found)), torch.tensor(prompt[1:])]
    assert difference.abs().max() < (1e-3 if dtype == "float32" else 0.5)
