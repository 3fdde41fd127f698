"""Logprobs of completions with a real model: those of transformers, as evaluation harnesses ask for them."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.servers.weft_process import WeftProcess, run_weft_process
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a process that loads torch

PROMPTS = [[5, 17, 9, 33, 8], [40, 2, 77, 31, 6, 12, 90, 11, 3], [61] * 40]


def post_completion(weft: WeftProcess, **fields: Any) -> list[dict[str, Any]]:
    body = json.dumps(fields | {"max_tokens": 1, "temperature": 0}).encode()
    with urlopen(Request(f"{weft.url}/v1/completions", body, {"content-type": "application/json"})) as answer:
        choices: list[dict[str, Any]] = json.load(answer)["choices"]
    return choices


def test_echoed_prompts_have_the_logprobs_of_transformers(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with run_weft_process(tmp_path, str(folder), "--threads", "1", "--dtype", "float32") as weft:
        choices = post_completion(weft, prompt=PROMPTS, echo=True, logprobs=2)
        for prompt, choice in zip(PROMPTS, choices, strict=True):
            with torch.inference_mode():
                expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            logprobs, tops = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
            assert len(logprobs) == len(prompt) + 1
            assert (logprobs[0], tops[0]) == (None, None)
            assert logprobs[1:-1] == pytest.approx(
                [expected[index - 1, token].item() for index, token in enumerate(prompt) if index], abs=1e-3)
            # "Greedy" is read off by equality: the number of a token and that of the best candidate must be one number.
            is_greedy = [logprob == max(top.values()) for logprob, top in zip(logprobs[1:-1], tops[1:-1], strict=True)]
            assert is_greedy == [expected[index - 1].argmax().item() == token
                                 for index, token in enumerate(prompt) if index]
            assert logprobs[-1] == max(tops[-1].values()) == pytest.approx(expected[-1].max().item(), abs=1e-3)
        alone = [post_completion(weft, prompt=[prompt], echo=True, logprobs=2)[0] for prompt in PROMPTS]
        assert [choice["logprobs"] for choice in alone] == [choice["logprobs"] for choice in choices]
