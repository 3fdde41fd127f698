"""Same bytes in any batch, and transformers' greedy text, for every model family.

One short history per family runs here; `make test-long` adds long random histories.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from support.core_with_workers import Loom, Thread
from support.small_checkpoints import FAMILIES, tiny_checkpoint
from transformers import AutoModelForCausalLM

from router.request import Request, SamplingParams
from shard.attention.backend import make_attention
from shard.attention.variant import Variant
from shard.models.read_config import read_config
from shard.ops.linear import can_pack
from shard.parallel.group import Alone
from shard.runner.exactness import Gate
from shard.workers.load_decoder import make_cache
from tests.shard.forward import CPU, PROMPT, read_model
from tests.shard.histories import histories, relaxed

DTYPES = [pytest.param(torch.float32, marks=pytest.mark.long), pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]
ELSEWHERE = ("llama", "qwen2", "qwen3")  # always tested in `workers/test_decoder.py` and `test_same_bytes.py`
SHARED = ("falcon", "gpt2", "qwen3_moe", "gemma3", "phi3")  # with tensor-parallel layouts of their own
NAMES = [pytest.param(name, marks=pytest.mark.long if name in ELSEWHERE else ()) for name in FAMILIES]
CASES = [pytest.param(name, ranks, marks=() if often else pytest.mark.long, id=f"{name} on {ranks}")
         for name in FAMILIES
         for ranks, often in ((1, name not in ELSEWHERE), (2, name in SHARED))]
DRAWN = SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.2, top_n_tokens=2)


def ask(length: int, **more: Any) -> Request:
    return Request(f"{length}", tuple(PROMPT[:length]), 8, key=length, **more)


# Prompts are chunked at 48 tokens; some chunks run beside decodes.
HISTORY = [Thread(ask(33, sampling=DRAWN)), Thread(ask(70, prompt_logprobs=True)), Thread(ask(2), arrival=2),
           Thread(ask(100, sampling=DRAWN), arrival=3)]
SCHEDULE = {"max_batch_prefill_tokens": 48, "look_ahead": 2}
SHORT = HISTORY[1:3]  # for several ranks, whose steps are slow


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture
def loom(folder: Path, ranks: int) -> Iterator[Loom]:
    with Loom(folder, ranks) as loom:
        assert loom.infos[0].exact
        yield loom


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_older_and_newer_versions_say_the_same(
        tmp_path_factory: pytest.TempPathFactory, family: str) -> None:
    new, old = (read_config(tiny_checkpoint(tmp_path_factory.getbasetemp(), family, older=older))
                for older in (False, True))
    assert new == old


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gate_finds_every_layer_exact(folder: Path, dtype: torch.dtype) -> None:
    model = read_model(folder, dtype, Alone())
    config = model.config
    attention = make_attention("cpu", config.num_heads, model.num_kv_heads, config.head_dim,
                               Variant(config.scale, config.softcap, config.windows))
    cache = partial(make_cache, model, 16, dtype=dtype, device=CPU)
    assert Gate(model, config, attention, cache, CPU).verdict() == ""


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "ranks"), CASES, indirect=["folder"])
def test_company_does_not_matter_and_greedy_text_is_transformers(loom: Loom, folder: Path) -> None:
    """The loom's exactness gate has checked a layer of each kind."""
    oracle, history = AutoModelForCausalLM.from_pretrained(folder), SHORT if len(loom.workers) > 1 else HISTORY
    for thread, heard in zip(history, loom.compare(history, losses=(5,), **SCHEDULE), strict=True):
        prompt, sampling = thread.request.prompt, thread.request.sampling
        if not sampling.temperature:
            said = oracle.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=8, pad_token_id=0)
            assert heard.tokens == said[0, len(prompt):].tolist()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two ranks"])
@settings(relaxed, max_examples=30)
@histories
def test_company_does_not_matter_for_long(loom: Loom, woven: list[Thread], schedule: dict[str, Any],
                                          losses: tuple[int, ...]) -> None:
    loom.compare(woven, losses=losses, **schedule)
