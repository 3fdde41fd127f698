"""Tokens that a worker generates, for prompts in a batch and in chunks, and the logits of transformers for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from support.shards.protocol_messages import SequenceRow, get_tokens_by_sequence, make_chunks, make_decode, make_prefill
from torch import Tensor

from shard.config import ShardConfig
from shard.pb import shard_pb2 as pb
from shard.pending_result import PendingResult
from shard.workers.decoder import DecoderWorker

NUM_NEW_TOKENS = 32
PROMPTS = [[(7 * i + 11 * length) % 400 + 2 for i in range(length)] for length in (5, 130, 17, 64)]
WARMUP_REQUEST = pb.WarmupRequest(block_size=16, max_prefill_tokens=256, max_batch_size=8, max_total_tokens=256,
                                  max_cache_tokens=2048)


class GeneratedTokens(dict[int, list[int]]):
    """Tokens generated so far, by sequence."""

    def add_answer(self, answer: pb.StepAnswer | PendingResult[pb.StepAnswer]) -> None:
        if isinstance(answer, PendingResult):  # of a step replayed on a GPU
            answer.wait()
            answer = answer.finish()
        for i, tokens in get_tokens_by_sequence(answer).items():
            self.setdefault(i, []).extend(tokens)


@contextmanager
def run_decoder_worker(folder: Path, device: str, dtype: str) -> Iterator[DecoderWorker]:
    """Yield a worker after its warm-up."""
    worker = DecoderWorker(ShardConfig(model=str(folder), device=device, dtype=dtype))
    worker.warmup(WARMUP_REQUEST)
    try:
        yield worker
    finally:
        worker.close()


def make_rows(*prompts: list[int]) -> list[SequenceRow]:
    """Return rows with blocks for their prompt and twice NUM_NEW_TOKENS."""
    blocks = iter(range(128))
    return [SequenceRow(i, prompt, [next(blocks) for _ in range(-(-(len(prompt) + 2 * NUM_NEW_TOKENS) // 16))])
            for i, prompt in enumerate(prompts)]


def generate_in_batch(worker: DecoderWorker, *prompts: list[int]) -> list[list[int]]:
    """Return NUM_NEW_TOKENS tokens for each prompt, all prompts in one step."""
    outputs = GeneratedTokens()
    outputs.add_answer(worker.prefill(make_prefill(1, *make_rows(*prompts))))
    for _ in range(NUM_NEW_TOKENS - 1):
        outputs.add_answer(worker.decode(make_decode(1)))
    return [outputs[i] for i in range(len(prompts))]


def generate_beside_decodes(worker: DecoderWorker, first: list[int], prompt: list[int], chunk_size: int) -> list[int]:
    """Return NUM_NEW_TOKENS tokens for a prompt in chunks that run beside decodes of the first prompt."""
    decoding_row, chunked_row = make_rows(first, prompt)
    outputs, length = GeneratedTokens(), len(prompt)
    outputs.add_answer(worker.prefill(make_prefill(1, decoding_row)))
    outputs.add_answer(worker.prefill(make_prefill(1, chunked_row, chunk_rows=[(1, 0, chunk_size)], alongside=True)))
    for start in range(chunk_size, length, chunk_size):
        chunk = make_chunks((1, start, min(chunk_size, length - start)))
        outputs.add_answer(worker.prefill(pb.PrefillRequest(batch=1, chunks=chunk, alongside=True)))
    outputs.add_answer(worker.decode(make_decode(1, keep=pb.Keep(sequences=[1]))))
    while len(outputs[1]) < NUM_NEW_TOKENS:
        outputs.add_answer(worker.decode(make_decode(1)))
    return outputs[1]


def compute_prompt_logprobs(worker: DecoderWorker, prompt: list[int]) -> Tensor:
    row = SequenceRow(0, prompt, range(-(-len(prompt) // 16) + 2), prompt_logprobs=True)
    return torch.tensor(worker.prefill(make_prefill(1, row)).prompt_logprobs)


@torch.inference_mode()
def compute_reference_logits(transformers_model: Any, prompt: list[int], output_tokens: list[int]) -> Tensor:
    """Return the logits from which transformers would choose each token: [tokens, vocabulary]."""
    ids = torch.tensor([prompt + output_tokens], device=transformers_model.device)
    logits: Tensor = transformers_model(ids).logits[0, len(prompt) - 1:-1]
    return logits.float()


def compute_reference_prompt_logprobs(transformers_model: Any, prompt: list[int]) -> Tensor:
    logprobs = compute_reference_logits(transformers_model, prompt[:1], prompt[1:]).log_softmax(-1).cpu()
    return logprobs[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])]


def check_tokens(transformers_model: Any, prompt: list[int], output_tokens: list[int], tolerance: float) -> None:
    """Check that each token is the best of transformers for the tokens before it, but where its two best logits differ
    by less than the tolerance."""
    assert len(output_tokens) == NUM_NEW_TOKENS
    for token, row in zip(output_tokens, compute_reference_logits(transformers_model, prompt, output_tokens),
                          strict=True):
        best, second = row.topk(2).values.tolist()
        if best - second >= tolerance:
            assert token == int(row.argmax())
