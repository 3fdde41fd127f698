"""Tests of `weft serve` over HTTP with the model on a GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import support.weft_process
import torch
from support.small_checkpoints import tiny_checkpoint
from support.weft_process import PROMPT, serving, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = pytest.mark.gpu

NUM_TOKENS = 40
LAUNCHER = f"""#!/bin/sh
exec {sys.executable} -P -m launcher.cli "$@"
"""
SHARDS = {
    "one shard": (),
    "two shards, over the host's memory": ("--num-shard", "2", "--dist-backend", "memory"),
}


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), "llama")


@pytest.fixture(autouse=True)
def weft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `weft` from the source tree, since it may not be installed."""
    (program := tmp_path / "weft").write_text(LAUNCHER)
    program.chmod(0o755)
    monkeypatch.setattr(support.weft_process, "WEFT", program)


def expected(folder: Path, device: str) -> list[int]:
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device)
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt").to(device)
    output = oracle.generate(**ids, do_sample=False, max_new_tokens=NUM_TOKENS, pad_token_id=0)[0]
    return list(map(int, output[ids["input_ids"].shape[1]:]))


def ids_of(answer: dict[str, Any]) -> list[int]:
    return [token["id"] for token in answer["details"]["tokens"]]


@pytest.mark.parametrize("flags", SHARDS.values(), ids=SHARDS)
def test_answers_are_those_of_transformers(
        model: Path, tmp_path: Path, device: str, flags: tuple[str, ...]) -> None:
    with serving(tmp_path, str(model), "--device", device, "--memory-fraction", "0.2", *flags) as weft:
        with weft.post("/generate", NUM_TOKENS, details=True) as response:
            found = ids_of(json.load(response))
        streamed = [event["token"]["id"] for event in tokens(weft.post("/generate_stream", NUM_TOKENS))]
        others = [weft.generate(NUM_TOKENS, f"{PROMPT} {number}") for number in range(4)]
    assert found == streamed == expected(model, device)
    assert all(others)
