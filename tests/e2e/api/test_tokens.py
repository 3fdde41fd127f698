"""Tests over real gRPC that every request gets the simulated model's tokens under all settings and in all batches."""

import asyncio
import random

import pytest
from support.servers.expected_streams import compute_expected_output, make_text_request
from support.servers.in_process_server import play_scenario

from router.request import FinishReason, SamplingParams

STOP_STRINGS = ("oo", "weft", "ll ", "s t")


def make_random_requests(seed, num_requests=24):
    """Yield requests that end by length, by end token and by stop string."""
    rng = random.Random(seed)
    for number in range(num_requests):
        stop = tuple(rng.sample(STOP_STRINGS, rng.randrange(3)))
        yield make_text_request(f"{number} " * rng.randrange(1, 40), rng.choice((1, 2, 7, 30, 60)),
                                sampling_key=rng.getrandbits(64), stop_strings=stop, prompt_logprobs=rng.random() < 0.2,
                                sampling=SamplingParams(temperature=1.0, top_n_tokens=rng.randrange(3)))


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_tokens_texts_and_finish_reasons_match_the_simulated_model(tmp_path, policy, look_ahead, ranks,
                                                                   tokens_per_step):
    requests = list(make_random_requests(seed=look_ahead))

    async def scenario(weft):
        await weft.check_streams(*requests)
        await weft.check_idle()
        ends = {compute_expected_output(request, weft.model)[2] for request in requests}
        assert ends == set(FinishReason) - {FinishReason.TIMEOUT}

    play_scenario(scenario, tmp_path, prefill_policy=policy, look_ahead=look_ahead, ranks=ranks,
                  tokens_per_step=tokens_per_step, mean_output_length=40.0, max_batch_size=8,
                  max_batch_prefill_tokens=64)


@pytest.mark.slow
@pytest.mark.parametrize("tokens_per_step", [1, 3])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_preempted_sequences_continue_unchanged(tmp_path, policy, tokens_per_step):
    async def scenario(weft):
        await weft.check_streams(*(make_text_request(f"{number}", 60, stop_strings=("weft",)) for number in range(10)))
        await weft.check_idle()
        assert weft.shards.num_reentered > 0
    play_scenario(scenario, tmp_path, prefill_policy=policy, num_blocks=16, tokens_per_step=tokens_per_step)


def test_tokens_do_not_depend_on_other_clients(tmp_path):
    async def scenario(weft):
        (alone,) = await weft.collect_streams(make_text_request("a loom", 30, sampling_key=5))
        same, *_ = await weft.collect_streams(make_text_request("a loom", 30, sampling_key=5),
                                              *(make_text_request("a loom", 30, sampling_key=key) for key in range(3)))
        assert same.tokens == alone.tokens
    play_scenario(scenario, tmp_path)


def test_prompt_logprobs_come_once_for_every_token_but_the_first(tmp_path):
    async def scenario(weft):
        with_logprobs, without_logprobs = await weft.collect_streams(
            make_text_request("x" * 70, 3, prompt_logprobs=True), make_text_request("x" * 70, 3))
        assert sorted(with_logprobs.prompt_logprobs) == list(range(1, 70))
        assert not without_logprobs.prompt_logprobs
    play_scenario(scenario, tmp_path, max_batch_prefill_tokens=32)


def test_requested_number_of_top_tokens_comes_best_first(tmp_path):
    async def scenario(weft):
        stream = weft.submit("a loom", 6, sampling=SamplingParams(top_n_tokens=3))
        await weft.engine.wait_until_drained()
        *tokens, _ = await stream.wait_for_events()
        assert [len(event.top_tokens) for event in tokens] == [3] * 6
        assert all(event.top_tokens[0].id == event.id for event in tokens)
    play_scenario(scenario, tmp_path)


def test_request_waiting_for_a_resource_can_be_cancelled(tmp_path, monkeypatch):
    async def scenario(weft):
        async def load_forever(_):
            await asyncio.Event().wait()

        monkeypatch.setattr(weft.engine._shards, "load_or_unload", load_forever)
        adapter = weft.engine.adapter_grammar_controller.loader.get_or_register("adapter", "far")
        stream = weft.submit("a loom", 6, adapter=adapter)
        await weft.check_streams(make_text_request("another"))
        assert len(weft.engine._client_streams) == 1
        stream.close()
        await weft.check_idle()
    play_scenario(scenario, tmp_path)
