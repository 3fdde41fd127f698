"""A prefix cache hit gives tokens and logprobs that are bit-identical to those of computing the whole prompt. Prompts
share prefixes with earlier prompts, or continue an earlier answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints.small_checkpoints import make_tiny_checkpoint
from support.scheduling.simulated_world import add_block_hashes
from support.shards.scheduler_with_workers import ReceivedOutput, ScheduledRequest, SchedulerWithWorkers

from router.request import Request, SamplingParams, Tenant

BLOCK_SIZE = 16
# Three long sequences do not fit a small cache: blocks are evicted, and sequences are preempted.
SMALL_CACHE_OPTIONS = {"num_places": BLOCK_SIZE * 10, "max_total_tokens": 150}
QUICK_OPTIONS: dict[str, dict[str, Any]] = {"float32": {},
                                            "bfloat16, a small cache": {"dtype": "bfloat16"} | SMALL_CACHE_OPTIONS}
TWO_RANK_OPTIONS: dict[str, dict[str, Any]] = {"two ranks, a small cache": {"ranks": 2} | SMALL_CACHE_OPTIONS}
HARNESS_OPTIONS: dict[str, dict[str, Any]] = QUICK_OPTIONS | TWO_RANK_OPTIONS | {
    "float32, a small cache": SMALL_CACHE_OPTIONS, "bfloat16, two ranks": {"dtype": "bfloat16", "ranks": 2}}
WHOLE_PREFIX = 1000
MAX_PROMPT_TOKENS = 100  # tokens of a prompt


def make_random_tokens(num_tokens: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, 512, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist())


@pytest.fixture(scope="module", params=HARNESS_OPTIONS)
def scheduler_with_workers(request: pytest.FixtureRequest,
                           tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    dtype = HARNESS_OPTIONS[request.param].get("dtype", "float32")
    with SchedulerWithWorkers(make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", dtype=dtype),
                              **HARNESS_OPTIONS[request.param]) as harness:
        yield skip_unless_exact(harness)


def skip_unless_exact(harness: SchedulerWithWorkers) -> SchedulerWithWorkers:
    if not harness.infos[0].exact:
        pytest.skip("the gate found that answers are not exact on this machine")
    return harness


@dataclass(frozen=True)
class PrefixRequest:
    """A request whose prompt is a prefix of an earlier request's prompt and answer, followed by tokens of its own."""

    followed_index: int
    num_shared_tokens: int
    num_own_tokens: int
    request: Request  # without its prompt
    arrival_step: int
    cancel_after_steps: int | None


def make_scheduled_requests(prefix_requests: list[PrefixRequest],
                            harness: SchedulerWithWorkers) -> list[ScheduledRequest]:
    scheduled_requests: list[ScheduledRequest] = []
    texts: list[tuple[int, ...]] = [make_random_tokens(MAX_PROMPT_TOKENS, seed=0)]
    for number, prefix_request in enumerate(prefix_requests):
        shared_prefix = texts[prefix_request.followed_index % len(texts)][:prefix_request.num_shared_tokens]
        prompt = (shared_prefix
                  + make_random_tokens(prefix_request.num_own_tokens, seed=number + 1))[:MAX_PROMPT_TOKENS]
        request = add_block_hashes(replace(prefix_request.request, id=str(number), prompt=prompt), BLOCK_SIZE)
        scheduled_requests.append(ScheduledRequest(request, prefix_request.arrival_step,
                                                   prefix_request.cancel_after_steps and prefix_request.arrival_step
                                                   + prefix_request.cancel_after_steps))
        texts.append(prompt + tuple(harness.run_alone(request).tokens))
    return scheduled_requests


sampling_params = st.sampled_from([
    SamplingParams(), SamplingParams(), SamplingParams(temperature=1.0, top_n_tokens=3),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.5), SamplingParams(watermark=True)])
requests_without_prompts = st.builds(partial(Request, "", ()), max_new_tokens=st.sampled_from([1, 5, 30, 50, 50]),
                                     sampling_key=st.integers(0, 2**64 - 1), sampling=sampling_params,
                                     prompt_logprobs=st.sampled_from([False, False, False, True]),
                                     tenant=st.sampled_from([Tenant("one"), Tenant("one"), Tenant("two")]))
random_prefix_requests = st.builds(PrefixRequest, followed_index=st.sampled_from([0, 0, 1, 2, 3, 4, 5]),
                                   num_shared_tokens=st.sampled_from([16, 33, 64, 65, 90, WHOLE_PREFIX, WHOLE_PREFIX]),
                                   num_own_tokens=st.sampled_from([1, 1, 5, 16, 40]), request=requests_without_prompts,
                                   arrival_step=st.sampled_from([0, 0, 0, 0, 1, 2, 5, 10, 25, 60]),
                                   cancel_after_steps=st.sampled_from([None, None, None, None, 1, 10]))
scheduler_settings = st.fixed_dictionaries({
    "prefill_policy": st.sampled_from(["mixed", "pause"]), "look_ahead": st.sampled_from([1, 2]),
    "max_batch_prefill_tokens": st.sampled_from([32, 48, 100, 256]), "max_batch_size": st.sampled_from([3, 16])})
given_random_histories = given(prefix_requests=st.lists(random_prefix_requests, min_size=4, max_size=9),
                               schedule=scheduler_settings, losses=st.sampled_from([(), (), (5,), (3, 30)]))
relaxed_settings = settings(deadline=None,
                            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@pytest.mark.parametrize("scheduler_with_workers", QUICK_OPTIONS, indirect=True)
@settings(relaxed_settings, max_examples=4, derandomize=True)
@given_random_histories
def test_prefix_cache_hit_equals_a_miss(scheduler_with_workers: SchedulerWithWorkers,
                                        prefix_requests: list[PrefixRequest], schedule: dict[str, Any],
                                        losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(make_scheduled_requests(prefix_requests, scheduler_with_workers),
                                           loss_steps=losses, **schedule)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler_with_workers", TWO_RANK_OPTIONS, indirect=True)
@settings(relaxed_settings, max_examples=2, derandomize=True)
@given_random_histories
def test_prefix_cache_hit_equals_a_miss_on_two_ranks(scheduler_with_workers: SchedulerWithWorkers,
                                                     prefix_requests: list[PrefixRequest], schedule: dict[str, Any],
                                                     losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(make_scheduled_requests(prefix_requests, scheduler_with_workers),
                                           loss_steps=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(relaxed_settings, max_examples=150)
@given_random_histories
def test_prefix_cache_hit_equals_a_miss_in_many_histories(scheduler_with_workers: SchedulerWithWorkers,
                                                          prefix_requests: list[PrefixRequest],
                                                          schedule: dict[str, Any], losses: tuple[int, ...]) -> None:
    scheduler_with_workers.run_and_compare(make_scheduled_requests(prefix_requests, scheduler_with_workers),
                                           loss_steps=losses, **schedule)


# -- number of tokens found in the cache


@pytest.fixture(scope="module")
def scheduler_with_large_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerWithWorkers]:
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with SchedulerWithWorkers(checkpoint, max_total_tokens=2048, max_prefill_tokens=512, num_places=8192) as harness:
        yield skip_unless_exact(harness)


def make_hashed_request(name: str, prompt: tuple[int, ...], max_new_tokens: int = 4, **fields: Any) -> Request:
    return add_block_hashes(Request(name, prompt, max_new_tokens, **fields), BLOCK_SIZE)


def schedule_one_after_another(requests: list[Request]) -> list[ScheduledRequest]:
    """Return the requests so scheduled that they run one after the other: each arrives when the earlier ones have
    ended."""
    return [ScheduledRequest(request, arrival_step=40 * number) for number, request in enumerate(requests)]


def get_cached_counts(outputs: list[ReceivedOutput]) -> list[int]:
    return [output.num_cached_tokens for output in outputs]


PROMPT_TOKENS = make_random_tokens(100, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("look_ahead", [1, 2])
def test_full_blocks_before_the_last_token_are_cache_hits(scheduler_with_large_cache: SchedulerWithWorkers, policy: str,
                                                          look_ahead: int) -> None:
    answer = tuple(scheduler_with_large_cache.run_alone(make_hashed_request("", PROMPT_TOKENS, 30)).tokens)
    requests = [make_hashed_request("the first", PROMPT_TOKENS, 30),
                make_hashed_request("ends in a block", PROMPT_TOKENS[:70] + make_random_tokens(9, seed=2)),
                make_hashed_request("ends with a block", PROMPT_TOKENS[:96]),
                make_hashed_request("a second turn", PROMPT_TOKENS + answer + (5, 6, 7)),
                make_hashed_request("begins otherwise", (PROMPT_TOKENS[0] ^ 1, *PROMPT_TOKENS[1:])),
                make_hashed_request("somebody else", PROMPT_TOKENS, tenant=Tenant("other"))]
    outputs = scheduler_with_large_cache.run_and_compare(schedule_one_after_another(requests), prefill_policy=policy,
                                                         look_ahead=look_ahead)
    assert get_cached_counts(outputs) == [0, 64, 80, 128, 0, 0]
    assert [output.num_computed_tokens for output in outputs] == [100, 15, 16, 5, 100, 100]


@pytest.mark.slow
def test_prompt_logprobs_are_right_though_the_prompt_is_cached(
        scheduler_with_large_cache: SchedulerWithWorkers) -> None:
    first, again = scheduler_with_large_cache.run_and_compare(schedule_one_after_another(
        [make_hashed_request("one", PROMPT_TOKENS), make_hashed_request("two", PROMPT_TOKENS, prompt_logprobs=True)]))
    assert get_cached_counts([first, again]) == [0, 0]
    assert len(again.prompt_logprobs) == len(PROMPT_TOKENS) - 1


@pytest.mark.slow
def test_prefix_cache_is_empty_after_a_loss(scheduler_with_large_cache: SchedulerWithWorkers) -> None:
    assert get_cached_counts(scheduler_with_large_cache.run_and_compare(schedule_one_after_another([make_hashed_request(
        "one", PROMPT_TOKENS), make_hashed_request("two", PROMPT_TOKENS)]), loss_steps=(40,))) == [0, 0]


@pytest.mark.slow
def test_request_waits_for_a_prefix_being_computed_and_reuses_it(
        scheduler_with_large_cache: SchedulerWithWorkers) -> None:
    outputs = scheduler_with_large_cache.run_and_compare(
        [ScheduledRequest(make_hashed_request(str(number), PROMPT_TOKENS, 8)) for number in range(4)])
    assert get_cached_counts(outputs) == [0, 96, 96, 96]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_second_chat_turn_computes_little_more_than_its_new_tokens(scheduler_with_large_cache: SchedulerWithWorkers,
                                                                   policy: str) -> None:
    prompt = make_random_tokens(1500, seed=3)
    first = make_hashed_request("first turn", prompt, 60)
    user_tokens = make_random_tokens(40, seed=4)
    second = make_hashed_request("second turn",
                                 prompt + tuple(scheduler_with_large_cache.run_alone(first).tokens) + user_tokens, 20)
    outputs = scheduler_with_large_cache.run_and_compare([ScheduledRequest(first),
                                                          ScheduledRequest(second, arrival_step=120)],
                                                         prefill_policy=policy)
    assert outputs[1].num_computed_tokens <= len(user_tokens) + 2 * BLOCK_SIZE


@pytest.mark.slow
def test_preempted_sequence_reuses_its_cached_blocks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache holds one and a half sequences: the second is preempted, and the first takes the blocks it needs."""
    checkpoint = make_tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with SchedulerWithWorkers(checkpoint, num_places=BLOCK_SIZE * 12, max_total_tokens=150) as harness:
        first, second = skip_unless_exact(harness).run_and_compare(
            [ScheduledRequest(make_hashed_request("one", make_random_tokens(60, seed=5), 70)),
             ScheduledRequest(make_hashed_request("two", make_random_tokens(60, seed=6), 70))])
    assert first.num_cached_tokens == 0
    assert second.num_computed_tokens + second.num_cached_tokens > 2 * 60
    assert second.num_cached_tokens > 0
