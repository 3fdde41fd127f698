"""Tests over real gRPC that every request gets the simulated model's tokens under all settings and in all batches."""

import asyncio
import random

import pytest
from support.expected_streams import ask, expected
from support.in_process_server import play

from router.request import FinishReason, SamplingParams

STOPS = ("oo", "weft", "ll ", "s t")


def crowd(seed, size=24):
    """Yield requests that end by length, by end token and by stop string."""
    dice = random.Random(seed)
    for number in range(size):
        stop = tuple(dice.sample(STOPS, dice.randrange(3)))
        yield ask(f"{number} " * dice.randrange(1, 40), dice.choice((1, 2, 7, 30, 60)), key=dice.getrandbits(64),
                  stop_strings=stop, prompt_logprobs=dice.random() < 0.2,
                  sampling=SamplingParams(temperature=1.0, top_n_tokens=dice.randrange(3)))


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_tokens_texts_and_ends_are_those_of_the_rule(tmp_path, policy, look_ahead, ranks, tokens_per_step):
    requests = list(crowd(seed=look_ahead))

    async def story(weft):
        await weft.hear_right(*requests)
        await weft.check_idle()
        ends = {expected(request, weft.model)[2] for request in requests}
        assert ends == set(FinishReason) - {FinishReason.TIMEOUT}

    play(story, tmp_path, prefill_policy=policy, look_ahead=look_ahead, ranks=ranks, tokens_per_step=tokens_per_step,
         mean_output_length=40.0, max_batch_size=8, max_batch_prefill_tokens=64)


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_sequences_that_yield_go_on_as_if_nothing_had_happened(tmp_path, policy, tokens_per_step):
    async def story(weft):
        await weft.hear_right(*(ask(f"{number}", 60, stop_strings=("weft",)) for number in range(10)))
        await weft.check_idle()
        assert weft.shards.num_sent_again > 0
    play(story, tmp_path, prefill_policy=policy, num_blocks=16, tokens_per_step=tokens_per_step)


def test_what_one_client_asks_changes_nothing_for_another(tmp_path):
    async def story(weft):
        (alone,) = await weft.hear(ask("a loom", 30, key=5))
        same, *_ = await weft.hear(ask("a loom", 30, key=5), *(ask("a loom", 30, key=key) for key in range(3)))
        assert same.tokens == alone.tokens
    play(story, tmp_path)


def test_the_logprobs_of_every_prompt_token_but_the_first_come_once(tmp_path):
    async def story(weft):
        heard, other = await weft.hear(ask("x" * 70, 3, prompt_logprobs=True), ask("x" * 70, 3))
        assert sorted(heard.prompt_logprobs) == list(range(1, 70))
        assert not other.prompt_logprobs
    play(story, tmp_path, max_batch_prefill_tokens=32)


def test_as_many_candidates_come_as_were_asked_for_the_best_first(tmp_path):
    async def story(weft):
        stream = weft.submit("a loom", 6, sampling=SamplingParams(top_n_tokens=3))
        await weft.engine.drained()
        *tokens, _ = await stream.events()
        assert [len(event.top) for event in tokens] == [3] * 6
        assert all(event.top[0].id == event.id for event in tokens)
    play(story, tmp_path)


def test_a_request_that_needs_what_is_not_loaded_yet_waits_and_can_leave(tmp_path, monkeypatch):
    async def story(weft):
        async def take_long(_):
            await asyncio.Event().wait()

        monkeypatch.setattr(weft.engine._shards, "load", take_long)
        stream = weft.submit("a loom", 6, adapter=weft.engine.supply.resources.of("adapter", "far"))
        await weft.hear_right(ask("another"))
        assert weft.engine.num_unfinished == 1
        stream.close()
        await weft.check_idle()
    play(story, tmp_path)
