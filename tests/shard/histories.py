"""Strategies of random histories (arrivals, cancellations, lost shard state), for tests of exactness in any batch."""

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.core_with_workers import Thread

from router.request import Request, SamplingParams

# Around multiples of the block size and of the lengths that attention gathers.
LENGTHS = (1, 2, 15, 16, 17, 33, 47, 63, 64, 65, 100, 127, 128, 129, 150, 185)


def maybe(strategy: st.SearchStrategy[Any], default: Any = 0) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(default), strategy)


tokens = st.integers(2, 511)
sampling = st.builds(
    SamplingParams, temperature=maybe(st.sampled_from([0.3, 1.0, 1.7])), top_k=maybe(st.integers(1, 40)),
    top_p=maybe(st.sampled_from([0.5, 0.9, 0.99])), typical_p=maybe(st.sampled_from([0.3, 0.9])),
    min_p=maybe(st.sampled_from([0.05, 0.3])), repetition_penalty=maybe(st.sampled_from([0.7, 1.3])),
    relative_frequency_penalty=maybe(st.sampled_from([-1.0, 2.0])),
    frequency_penalty=maybe(st.sampled_from([-1.0, 1.0])), presence_penalty=maybe(st.sampled_from([-1.0, 1.0])),
    watermark=st.booleans(), top_n_tokens=maybe(st.integers(1, 5)), raw_logprobs=st.booleans(),
    banned_tokens=maybe(st.lists(tokens, max_size=5).map(tuple), ()),
    allowed_tokens=maybe(st.lists(tokens, min_size=1, max_size=9, unique=True).map(tuple), ()),
    min_tokens=maybe(st.integers(1, 5)))


# Parameters for which the token is chosen on the device (sampling/device_sampler.py); none has a grammar or an adapter.
plain = st.one_of(
    st.just(SamplingParams()),
    st.builds(SamplingParams, temperature=st.just(1.0), raw_logprobs=st.booleans(), top_k=maybe(st.integers(1, 80)),
              top_p=maybe(st.sampled_from([0.5, 0.9])), typical_p=maybe(st.sampled_from([0.3, 0.9])),
              min_p=maybe(st.sampled_from([0.05, 0.3]))),
    st.builds(SamplingParams, temperature=st.sampled_from([0.2, 0.7, 1.7]), top_p=maybe(st.sampled_from([0.5, 0.9]))))


@st.composite
def requests(draw: st.DrawFn, sampling: st.SearchStrategy[SamplingParams] = sampling) -> Request:
    length, seed = draw(st.sampled_from(LENGTHS)), draw(st.integers(0, 2**32))
    prompt = torch.randint(2, 512, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return Request(f"{length}-{seed}", tuple(prompt), draw(st.integers(1, 12)), key=draw(st.integers(0, 2**64 - 1)),
                   sampling=draw(sampling), prompt_logprobs=draw(st.booleans()))


def threads(sampling: st.SearchStrategy[SamplingParams]) -> st.SearchStrategy[list[Thread]]:
    coming = st.builds(Thread, requests(sampling), arrival=st.integers(0, 8), leaves=maybe(st.integers(9, 14), None))
    return st.lists(coming, min_size=2, max_size=6, unique_by=lambda thread: thread.request.id)


schedules = st.fixed_dictionaries({
    "prefill_policy": st.sampled_from(["mixed", "pause"]), "look_ahead": st.sampled_from([1, 2]),
    "max_batch_prefill_tokens": st.sampled_from([32, 48, 100, 256]), "max_batch_size": st.sampled_from([2, 16])})


losses = st.sampled_from([(), (), (3,), (2, 7)])
histories = given(woven=threads(sampling), schedule=schedules, losses=losses)
plain_histories = given(woven=threads(st.one_of(plain, plain, plain, plain, sampling)), schedule=schedules,
                        losses=losses)
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
