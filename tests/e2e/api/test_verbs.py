"""Tests of the calls that a shard receives over real gRPC, counted in the shard."""

import asyncio

import pytest
from support.servers.expected_streams import ReceivedStream, make_text_request
from support.servers.in_process_server import play_scenario

STEP_VERBS = ("Prefill", "Decode", "Filter", "Concat")


async def submit_overlapping_requests(weft, num_requests=4):
    """Submit requests that arrive while earlier ones decode and end while later ones still decode."""
    streams = []
    for number in range(num_requests):
        request = make_text_request(f"{number} " * 30, 20 + 10 * number)
        streams.append(asyncio.ensure_future(ReceivedStream.from_stream(weft.engine.submit(request))))
        await weft.shards.wait_for_num_steps(weft.shards.num_steps + 6)
    for received in await asyncio.gather(*streams):
        received.check_output(weft.model)


@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize(("policy", "verbs"), [("mixed", {"Prefill", "Decode", "Filter"}), ("pause", {*STEP_VERBS})])
def test_each_policy_uses_its_own_verbs(tmp_path, policy, verbs, look_ahead):
    async def scenario(weft):
        await submit_overlapping_requests(weft)
        await weft.check_idle()
        assert {verb for verb in STEP_VERBS if weft.rpc_counts[verb]} == verbs
        assert not weft.replacement_reasons
    play_scenario(scenario, tmp_path, prefill_policy=policy, look_ahead=look_ahead)


@pytest.mark.parametrize("transport", ["stream", "unary"])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_all_ranks_get_the_same_calls(tmp_path, policy, transport):
    async def scenario(weft):
        await submit_overlapping_requests(weft)
        await weft.check_idle()
        first, second = (rank.service.num_calls for rank in weft.ranks)
        assert first == second
    play_scenario(scenario, tmp_path, prefill_policy=policy, ranks=2, shard_transport=transport)


def test_shards_without_mixed_steps_get_separate_steps(tmp_path):
    async def scenario(weft):
        await submit_overlapping_requests(weft)
        assert weft.rpc_counts["Concat"]
        assert not weft.replacement_reasons
    play_scenario(scenario, tmp_path, prefill_policy="mixed", mixed_steps=False)


def test_no_step_is_sent_when_idle(tmp_path):
    async def scenario(weft):
        for steps in (5, 1):
            before = weft.shards.num_steps
            await weft.check_streams(make_text_request("a loom", steps))
            await weft.wait_for_steps_in_flight()
            assert weft.shards.num_steps == before + steps
    play_scenario(scenario, tmp_path)
