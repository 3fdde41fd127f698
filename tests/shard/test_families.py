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
from support.checkpoints.small_checkpoints import MODEL_FAMILIES, make_tiny_checkpoint
from support.model_runs.decoder_reference import CPU, PROMPT_TOKENS, load_decoder_model
from support.scheduling.random_schedules import given_random_histories, relaxed_settings
from support.shards.scheduler_with_workers import ScheduledRequest, SchedulerWithWorkers
from transformers import AutoModelForCausalLM

from router.request import Request, SamplingParams
from shard.attention.backend import AttentionOptions, make_attention_backend
from shard.models.registry import load_model_config
from shard.ops.unquantized_linear import can_pack
from shard.parallel.group import SingleRankGroup
from shard.runner.batch_invariance_check import ExactnessGate
from shard.workers.model_loading import make_cache

DTYPES = [pytest.param(torch.float32, marks=pytest.mark.long), pytest.param(torch.bfloat16, marks=pytest.mark.skipif(
    not can_pack(torch.bfloat16), reason="not packed on this processor"))]
# always tested in `workers/test_decoder.py` and `test_same_bytes.py`
FAMILIES_TESTED_ELSEWHERE = ("llama", "qwen2", "qwen3")
# with tensor-parallel layouts of their own
FAMILIES_TESTED_ON_TWO_RANKS = ("falcon", "gpt2", "qwen3_moe", "gemma3", "phi3")
FAMILY_PARAMETERS = [pytest.param(name, marks=pytest.mark.long if name in FAMILIES_TESTED_ELSEWHERE else ())
                     for name in MODEL_FAMILIES]
FAMILY_AND_RANK_CASES = [pytest.param(name, ranks, marks=() if often else pytest.mark.long, id=f"{name} on {ranks}")
                         for name in MODEL_FAMILIES for ranks, often in ((1, name not in FAMILIES_TESTED_ELSEWHERE),
                                                                         (2, name in FAMILIES_TESTED_ON_TWO_RANKS))]
RANDOM_SAMPLING = SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.2, top_n_tokens=2)


def make_request(prompt_length: int, **request_fields: Any) -> Request:
    return Request(f"{prompt_length}", tuple(PROMPT_TOKENS[:prompt_length]), 8, sampling_key=prompt_length,
                   **request_fields)


# Prompts are chunked at 48 tokens; some chunks run beside decodes.
SCHEDULED_REQUESTS = [ScheduledRequest(make_request(33, sampling=RANDOM_SAMPLING)),
                      ScheduledRequest(make_request(70, prompt_logprobs=True)),
                      ScheduledRequest(make_request(2), arrival_step=2),
                      ScheduledRequest(make_request(100, sampling=RANDOM_SAMPLING), arrival_step=3)]
SCHEDULER_SETTINGS = {"max_batch_prefill_tokens": 48, "look_ahead": 2}
FEW_SCHEDULED_REQUESTS = SCHEDULED_REQUESTS[1:3]  # for several ranks, whose steps are slow


@pytest.fixture(params=FAMILY_PARAMETERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.getbasetemp(), request.param)


@pytest.fixture
def scheduler_with_workers(checkpoint: Path, ranks: int) -> Iterator[SchedulerWithWorkers]:
    with SchedulerWithWorkers(checkpoint, ranks) as harness:
        assert harness.infos[0].exact
        yield harness


@pytest.mark.slow
@pytest.mark.parametrize("family", MODEL_FAMILIES)
def test_old_and_new_config_formats_are_equivalent(
        tmp_path_factory: pytest.TempPathFactory, family: str) -> None:
    new, old = (load_model_config(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), family, older=older))
                for older in (False, True))
    assert new == old


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_exactness_gate_passes_every_family(checkpoint: Path, dtype: torch.dtype) -> None:
    model = load_decoder_model(checkpoint, dtype, SingleRankGroup())
    config = model.config
    attention = make_attention_backend("cpu", config.num_heads, model.num_kv_heads, config.head_dim,
                                       AttentionOptions(config.attention_scale, config.attention_softcap,
                                                        config.sliding_windows))
    cache = partial(make_cache, model, 16, dtype=dtype, device=CPU)
    assert ExactnessGate(model, config, attention, cache, CPU).find_difference() == ""


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoint", "ranks"), FAMILY_AND_RANK_CASES, indirect=["checkpoint"])
def test_results_are_exact_in_any_batch_and_greedy_ones_match_transformers(scheduler_with_workers: SchedulerWithWorkers,
                                                                           checkpoint: Path) -> None:
    """`scheduler_with_workers` fails unless the exactness gate has found each kind of layer exact."""
    transformers_model, scheduled_requests = (
        AutoModelForCausalLM.from_pretrained(checkpoint),
        FEW_SCHEDULED_REQUESTS if len(scheduler_with_workers.workers) > 1 else SCHEDULED_REQUESTS)
    for scheduled_request, output in zip(scheduled_requests,
                                         scheduler_with_workers.run_and_compare(scheduled_requests, loss_steps=(5,),
                                                                                **SCHEDULER_SETTINGS), strict=True):
        prompt, sampling = scheduled_request.request.prompt, scheduled_request.request.sampling
        if not sampling.temperature:
            transformers_ids = transformers_model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=8,
                                                           pad_token_id=0)
            assert output.tokens == transformers_ids[0, len(prompt):].tolist()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two ranks"])
@settings(relaxed_settings, max_examples=30)
@given_random_histories
def test_results_are_exact_in_many_random_histories(
        scheduler_with_workers: SchedulerWithWorkers, scheduled_requests: list[ScheduledRequest],
        schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(scheduled_requests, loss_steps=losses, **schedule)
