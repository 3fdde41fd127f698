"""Tests of the calls that a shard receives over real gRPC, counted in the shard."""

import asyncio

import pytest
from support.expected_streams import Heard, ask
from support.in_process_server import play

WORK = ("Prefill", "Decode", "Filter", "Concat")


async def come_one_after_the_other(weft, count=4):
    """Submit requests that arrive while earlier ones decode and end while later ones still decode."""
    hearing = []
    for number in range(count):
        request = ask(f"{number} " * 30, 20 + 10 * number)
        hearing.append(asyncio.ensure_future(Heard.all_of(weft.engine.submit(request))))
        await weft.shards.reach(weft.shards.num_steps + 6)
    for heard in await asyncio.gather(*hearing):
        heard.check(weft.model)


@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize(("policy", "verbs"), [("mixed", {"Prefill", "Decode", "Filter"}), ("pause", {*WORK})])
def test_the_verbs_of_a_policy(tmp_path, policy, verbs, look_ahead):
    async def story(weft):
        await come_one_after_the_other(weft)
        await weft.check_idle()
        assert {verb for verb in WORK if weft.calls[verb]} == verbs
        assert not weft.broken
    play(story, tmp_path, prefill_policy=policy, look_ahead=look_ahead)


@pytest.mark.parametrize("transport", ["stream", "unary"])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_every_rank_is_called_alike(tmp_path, policy, transport):
    async def story(weft):
        await come_one_after_the_other(weft)
        await weft.check_idle()
        first, second = (rank.service.calls for rank in weft.ranks)
        assert first == second
    play(story, tmp_path, prefill_policy=policy, ranks=2, shard_transport=transport)


def test_shards_without_mixed_steps_get_none(tmp_path):
    async def story(weft):
        await come_one_after_the_other(weft)
        assert weft.calls["Concat"]
        assert not weft.broken
    play(story, tmp_path, prefill_policy="mixed", mixed_steps=False)


def test_no_step_is_sent_when_there_is_nothing_to_do(tmp_path):
    async def story(weft):
        for steps in (5, 1):
            before = weft.shards.num_steps
            await weft.hear_right(ask("a loom", steps))
            await weft.settle()
            assert weft.shards.num_steps == before + steps
    play(story, tmp_path)
