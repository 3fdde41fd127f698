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
from support.core_with_workers import Heard, Loom, Thread
from support.simulated_world import named
from support.small_checkpoints import tiny_checkpoint

from router.request import Request, SamplingParams, Tenant

BLOCK = 16
# Three long sequences do not fit a small cache: blocks are evicted, and sequences are preempted.
SMALL = {"num_places": BLOCK * 10, "max_total_tokens": 150}
QUICK: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16, a small cache": {"dtype": "bfloat16"} | SMALL}
RANKS: dict[str, dict[str, Any]] = {"two ranks, a small cache": {"ranks": 2} | SMALL}
LOOMS: dict[str, dict[str, Any]] = QUICK | RANKS | {
    "float32, a small cache": SMALL, "bfloat16, two ranks": {"dtype": "bfloat16", "ranks": 2}}
WHOLE = 1000
MOST = 100  # tokens of a prompt


def random_tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(2, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


@pytest.fixture(scope="module", params=LOOMS)
def loom(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    dtype = LOOMS[request.param].get("dtype", "float32")
    with Loom(tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2", dtype=dtype), **LOOMS[request.param]) as loom:
        yield exact(loom)


def exact(loom: Loom) -> Loom:
    if not loom.infos[0].exact:
        pytest.skip("the gate found that answers are not exact on this machine")
    return loom


@dataclass(frozen=True)
class Wish:
    """A request whose prompt is a prefix of an earlier request's prompt and answer, followed by tokens of its own."""

    follows: int
    shared: int
    own: int
    request: Request  # without its prompt
    arrival: int
    leaves: int | None


def threads_of(wishes: list[Wish], loom: Loom) -> list[Thread]:
    threads: list[Thread] = []
    texts: list[tuple[int, ...]] = [random_tokens(MOST, seed=0)]
    for number, wish in enumerate(wishes):
        beginning = texts[wish.follows % len(texts)][:wish.shared]
        prompt = (beginning + random_tokens(wish.own, seed=number + 1))[:MOST]
        request = named(replace(wish.request, id=str(number), prompt=prompt), BLOCK)
        threads.append(Thread(request, wish.arrival, wish.leaves and wish.arrival + wish.leaves))
        texts.append(prompt + tuple(loom.alone(request).tokens))
    return threads


samplings = st.sampled_from([
    SamplingParams(), SamplingParams(), SamplingParams(temperature=1.0, top_n_tokens=3),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.5), SamplingParams(watermark=True)])
requests = st.builds(
    partial(Request, "", ()), max_new_tokens=st.sampled_from([1, 5, 30, 50, 50]), key=st.integers(0, 2**64 - 1),
    sampling=samplings, prompt_logprobs=st.sampled_from([False, False, False, True]),
    tenant=st.sampled_from([Tenant("one"), Tenant("one"), Tenant("two")]))
wishes = st.builds(
    Wish, follows=st.sampled_from([0, 0, 1, 2, 3, 4, 5]), shared=st.sampled_from([16, 33, 64, 65, 90, WHOLE, WHOLE]),
    own=st.sampled_from([1, 1, 5, 16, 40]), request=requests,
    arrival=st.sampled_from([0, 0, 0, 0, 1, 2, 5, 10, 25, 60]), leaves=st.sampled_from([None, None, None, None, 1, 10]))
schedules = st.fixed_dictionaries({
    "prefill_policy": st.sampled_from(["mixed", "pause"]), "look_ahead": st.sampled_from([1, 2]),
    "max_batch_prefill_tokens": st.sampled_from([32, 48, 100, 256]), "max_batch_size": st.sampled_from([3, 16])})
histories = given(wishes=st.lists(wishes, min_size=4, max_size=9), schedule=schedules,
                  losses=st.sampled_from([(), (), (5,), (3, 30)]))
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@pytest.mark.parametrize("loom", QUICK, indirect=True)
@settings(relaxed, max_examples=6, derandomize=True)
@histories
def test_a_hit_equals_a_miss(loom: Loom, wishes: list[Wish], schedule: dict[str, Any],
                             losses: tuple[int, ...]) -> None:
    loom.compare(threads_of(wishes, loom), losses=losses, **schedule)


@pytest.mark.slow
@pytest.mark.parametrize("loom", RANKS, indirect=True)
@settings(relaxed, max_examples=2, derandomize=True)
@histories
def test_a_hit_equals_a_miss_on_two_ranks(loom: Loom, wishes: list[Wish], schedule: dict[str, Any],
                                          losses: tuple[int, ...]) -> None:
    loom.compare(threads_of(wishes, loom), losses=losses, **schedule)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(relaxed, max_examples=150)
@histories
def test_a_hit_equals_a_miss_for_long(loom: Loom, wishes: list[Wish], schedule: dict[str, Any],
                                      losses: tuple[int, ...]) -> None:
    loom.compare(threads_of(wishes, loom), losses=losses, **schedule)


# -- number of tokens found in the cache


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loom]:
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with Loom(model, max_total_tokens=2048, max_prefill_tokens=512, num_places=8192) as loom:
        yield exact(loom)


def asks(name: str, prompt: tuple[int, ...], output: int = 4, **fields: Any) -> Request:
    return named(Request(name, prompt, output, **fields), BLOCK)


def later(requests: list[Request]) -> list[Thread]:
    """Return threads that run one after the other: each arrives when the earlier ones have ended."""
    return [Thread(request, arrival=40 * number) for number, request in enumerate(requests)]


def found(woven: list[Heard]) -> list[int]:
    return [heard.cached for heard in woven]


TEXT = random_tokens(100, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("look_ahead", [1, 2])
def test_whole_blocks_before_the_last_token_are_found(roomy: Loom, policy: str, look_ahead: int) -> None:
    answer = tuple(roomy.alone(asks("", TEXT, 30)).tokens)
    requests = [
        asks("the first", TEXT, 30), asks("ends in a block", TEXT[:70] + random_tokens(9, seed=2)),
        asks("ends with a block", TEXT[:96]), asks("a second turn", TEXT + answer + (5, 6, 7)),
        asks("begins otherwise", (TEXT[0] ^ 1, *TEXT[1:])), asks("somebody else", TEXT, tenant=Tenant("other"))]
    woven = roomy.compare(later(requests), prefill_policy=policy, look_ahead=look_ahead)
    assert found(woven) == [0, 64, 80, 128, 0, 0]
    assert [heard.computed for heard in woven] == [100, 15, 16, 5, 100, 100]


@pytest.mark.slow
def test_prompt_logprobs_are_computed_and_right_though_the_prompt_is_cached(roomy: Loom) -> None:
    first, again = roomy.compare(later([asks("one", TEXT), asks("two", TEXT, prompt_logprobs=True)]))
    assert found([first, again]) == [0, 0]
    assert len(again.prompt_logprobs) == len(TEXT) - 1


@pytest.mark.slow
def test_after_a_loss_nothing_is_found(roomy: Loom) -> None:
    assert found(roomy.compare(later([asks("one", TEXT), asks("two", TEXT)]), losses=(40,))) == [0, 0]


@pytest.mark.slow
def test_who_comes_while_its_prompt_is_computed_for_another_waits_and_finds_it(roomy: Loom) -> None:
    woven = roomy.compare([Thread(asks(str(number), TEXT, 8)) for number in range(4)])
    assert found(woven) == [0, 96, 96, 96]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_the_second_turn_of_a_chat_computes_little_more_than_what_is_new(roomy: Loom, policy: str) -> None:
    prompt = random_tokens(1500, seed=3)
    first = asks("first turn", prompt, 60)
    said = random_tokens(40, seed=4)
    second = asks("second turn", prompt + tuple(roomy.alone(first).tokens) + said, 20)
    woven = roomy.compare([Thread(first), Thread(second, arrival=120)], prefill_policy=policy)
    assert woven[1].computed <= len(said) + 2 * BLOCK


@pytest.mark.slow
def test_who_yields_finds_again_what_it_published(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The cache holds one and a half sequences: the second is preempted, and the first takes the blocks it needs."""
    model = tiny_checkpoint(tmp_path_factory.getbasetemp(), "qwen2")
    with Loom(model, num_places=BLOCK * 12, max_total_tokens=150) as loom:
        first, second = exact(loom).compare([Thread(asks("one", random_tokens(60, seed=5), 70)),
                                      Thread(asks("two", random_tokens(60, seed=6), 70))])
    assert first.cached == 0
    assert second.computed + second.cached > 2 * 60
    assert second.cached > 0
