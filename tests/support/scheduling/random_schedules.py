"""Strategies of random histories (arrivals, cancellations, lost shard state), for tests of exactness in any batch."""

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.shards.scheduler_with_workers import ScheduledRequest

from router.request import Request, SamplingParams

# Around multiples of the block size and of the lengths that attention gathers.
PROMPT_LENGTHS = (1, 2, 15, 16, 17, 33, 47, 63, 64, 65, 100, 127, 128, 129, 150, 185)


def or_default(strategy: st.SearchStrategy[Any], default: Any = 0) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(default), strategy)


token_ids = st.integers(2, 511)
any_sampling_params = st.builds(
    SamplingParams, temperature=or_default(st.sampled_from([0.3, 1.0, 1.7])), top_k=or_default(st.integers(1, 40)),
    top_p=or_default(st.sampled_from([0.5, 0.9, 0.99])), typical_p=or_default(st.sampled_from([0.3, 0.9])),
    min_p=or_default(st.sampled_from([0.05, 0.3])), repetition_penalty=or_default(st.sampled_from([0.7, 1.3])),
    relative_frequency_penalty=or_default(st.sampled_from([-1.0, 2.0])),
    frequency_penalty=or_default(st.sampled_from([-1.0, 1.0])),
    presence_penalty=or_default(st.sampled_from([-1.0, 1.0])),
    watermark=st.booleans(), top_n_tokens=or_default(st.integers(1, 5)), raw_logprobs=st.booleans(),
    banned_tokens=or_default(st.lists(token_ids, max_size=5).map(tuple), ()),
    allowed_tokens=or_default(st.lists(token_ids, min_size=1, max_size=9, unique=True).map(tuple), ()),
    min_tokens=or_default(st.integers(1, 5)))


# Parameters for which a CUDA graph chooses the token (sampling/cuda_graph_sampler.py): no grammar, no adapter.
cuda_graph_sampling_params = st.one_of(
    st.just(SamplingParams()),
    st.builds(SamplingParams, temperature=st.just(1.0), raw_logprobs=st.booleans(),
              top_k=or_default(st.integers(1, 80)),
              top_p=or_default(st.sampled_from([0.5, 0.9])), typical_p=or_default(st.sampled_from([0.3, 0.9])),
              min_p=or_default(st.sampled_from([0.05, 0.3]))),
    st.builds(SamplingParams, temperature=st.sampled_from([0.2, 0.7, 1.7]),
              top_p=or_default(st.sampled_from([0.5, 0.9]))))


@st.composite
def random_requests(draw: st.DrawFn,
                    sampling_strategy: st.SearchStrategy[SamplingParams] = any_sampling_params) -> Request:
    length, seed = draw(st.sampled_from(PROMPT_LENGTHS)), draw(st.integers(0, 2**32))
    prompt = torch.randint(2, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Request(f"{length}-{seed}", tuple(prompt), draw(st.integers(1, 12)),
                   sampling_key=draw(st.integers(0, 2**64 - 1)), sampling=draw(sampling_strategy),
                   prompt_logprobs=draw(st.booleans()))


def scheduled_request_lists(
        sampling_strategy: st.SearchStrategy[SamplingParams]) -> st.SearchStrategy[list[ScheduledRequest]]:
    scheduled_requests = st.builds(ScheduledRequest, random_requests(sampling_strategy), arrival_step=st.integers(0, 8),
                                   cancel_step=or_default(st.integers(9, 14), None))
    return st.lists(scheduled_requests, min_size=2, max_size=6, unique_by=lambda thread: thread.request.id)


scheduler_settings = st.fixed_dictionaries({
    "prefill_policy": st.sampled_from(["mixed", "pause"]), "look_ahead": st.sampled_from([1, 2]),
    "max_batch_prefill_tokens": st.sampled_from([32, 48, 100, 256]), "max_batch_size": st.sampled_from([2, 16])})


loss_steps = st.sampled_from([(), (), (3,), (2, 7)])
given_random_histories = given(scheduled_requests=scheduled_request_lists(any_sampling_params),
                               schedule=scheduler_settings, losses=loss_steps)
given_device_sampling_histories = given(scheduled_requests=scheduled_request_lists(
    st.one_of(*[cuda_graph_sampling_params] * 4, any_sampling_params)), schedule=scheduler_settings, losses=loss_steps)
relaxed_settings = settings(deadline=None,
                            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
