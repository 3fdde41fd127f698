"""Tests of `weft serve` over HTTP with the model on a GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.weft_process import DEFAULT_PROMPT, iter_stream_events, run_weft_process
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.gpu

NUM_NEW_TOKENS = 40
WEFT_FROM_SOURCE = (sys.executable, "-P", "-m", "launcher.cli")  # since it may not be installed
SHARD_FLAGS = {
    "one shard": (),
    "two shards, over the host's memory": ("--num-shard", "2", "--dist-backend", "memory"),
}


@pytest.fixture
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


def generate_with_transformers(folder: Path, device: str) -> list[int]:
    transformers_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    ids = AutoTokenizer.from_pretrained(folder)(DEFAULT_PROMPT, return_tensors="pt").to(device)
    output = transformers_model.generate(**ids, do_sample=False, max_new_tokens=NUM_NEW_TOKENS, pad_token_id=0)[0]
    return list(map(int, output[ids["input_ids"].shape[1]:]))


def get_token_ids(answer: dict[str, Any]) -> list[int]:
    return [token["id"] for token in answer["details"]["tokens"]]


@pytest.mark.parametrize("flags", SHARD_FLAGS.values(), ids=SHARD_FLAGS)
def test_answers_match_transformers(
        checkpoint: Path, tmp_path: Path, device: str, flags: tuple[str, ...]) -> None:
    with run_weft_process(tmp_path, str(checkpoint), "--device", device, "--memory-fraction", "0.2", *flags,
                          command=WEFT_FROM_SOURCE) as weft:
        with weft.post_prompt("/generate", NUM_NEW_TOKENS, details=True) as response:
            token_ids = get_token_ids(json.load(response))
        streamed = [event["token"]["id"]
                    for event in iter_stream_events(weft.post_prompt("/generate_stream", NUM_NEW_TOKENS))]
        other_answers = [weft.generate(NUM_NEW_TOKENS, f"{DEFAULT_PROMPT} {number}") for number in range(4)]
    assert token_ids == streamed == generate_with_transformers(checkpoint, device)
    assert all(other_answers)
