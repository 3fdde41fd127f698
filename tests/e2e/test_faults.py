"""Tests of shard failures over real gRPC: streams continue with the right tokens, or only the faulty request fails."""

import pytest
from support.expected_streams import ask
from support.in_process_server import play

from router.engine import engine
from router.errors import GenerationFailed
from shard.simulator.worker import SimulatedWorker, StepError

POISON = "\N{LATIN SMALL LETTER U WITH DIAERESIS}"  # a letter that no other prompt holds
STEPS = ["die@decode:3", "refuse@decode:3", "step_error@decode:3", "exhaust@decode:3", "wrong@decode:3:missing",
         "late@decode:3:0.02"]
OTHERS = ["die@prefill:1", "die@filter:1", "refuse@prefill:1", "refuse@filter:1", "step_error@prefill:1",
          "step_error@filter:1", "slow@decode:3:0.02", "late@prefill:1:0.02", "wrong@decode:3:unknown",
          "wrong@decode:3:token", "wrong@decode:3:count", "wrong@prefill:1:missing",
          "die@decode:2;refuse@decode:5;step_error@decode:9"]
CONCATS = ["die@concat:1", "refuse@concat:1", "step_error@concat:1"]


class Mortal(SimulatedWorker):
    """Worker that exits on a poisoned prompt instead of failing its step."""

    def _meet(self, sequence):
        try:
            super()._meet(sequence)
        except StepError:
            self._exit()


def crowd(size=6):
    """Return requests that end one after the other, some by a stop string."""
    return [ask(f"{number} " * 20, 12 + 3 * number, stop_strings=("oo",) * (number % 2)) for number in range(size)]


def has_fired(weft):
    return weft.num_replaced or any(fault.fired for rank in weft.ranks for fault in rank.worker.faults)


@pytest.mark.parametrize(("policy", "look_ahead", "faults"), [
    *(("mixed", 2, faults) for faults in STEPS + OTHERS),
    *(("mixed", 1, faults) for faults in STEPS),
    *(("pause", 2, faults) for faults in STEPS + CONCATS),
    *(("pause", 1, faults) for faults in CONCATS)])
def test_nobody_notices(tmp_path, policy, look_ahead, faults):
    async def story(weft):
        await weft.hear_right(*crowd())
        await weft.check_idle()
        assert has_fired(weft)
        assert not weft.broken
    play(story, tmp_path, faults=faults, prefill_policy=policy, look_ahead=look_ahead, max_batch_size=4)


@pytest.mark.parametrize("transport", ["stream", "unary"])
@pytest.mark.parametrize("faults", [*STEPS, "step_error@filter:1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_notices_whichever_rank_it_befalls(tmp_path, rank, faults, transport):
    async def story(weft):
        await weft.hear_right(*crowd())
        await weft.check_idle()
        assert has_fired(weft)
    play(story, tmp_path, faults=("", faults) if rank else (faults, ""), ranks=2, max_batch_size=4,
         shard_transport=transport)


@pytest.mark.parametrize("ranks", [1, 2])
def test_that_shards_are_gone_is_noticed_while_nobody_is_served(tmp_path, ranks):
    async def story(weft):
        lost = weft.watch("shards_lost")
        await weft.replace()
        await lost.get()
        assert weft.engine.ailment()
        await weft.check_idle()
    play(story, tmp_path, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_shards_may_be_replaced_while_nobody_is_served(tmp_path, ranks):
    async def story(weft):
        await weft.hear_right(ask())
        await weft.replace()
        await weft.hear_right(*crowd())
        await weft.check_idle()
    play(story, tmp_path, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("faults", ["hang@decode:3", "hang@prefill:2", "hang@filter:1"])
def test_shards_that_hang_are_replaced(tmp_path, faults, ranks):
    async def story(weft):
        await weft.hear_right(*crowd())
        await weft.check_idle()
        assert {why.partition(":")[0] for why in weft.broken} == {"deadline_exceeded"}
        assert weft.num_replaced
    play(story, tmp_path, faults=faults, ranks=ranks, max_batch_size=4, step_timeout=1.5)


@pytest.mark.slow
def test_shards_that_hang_when_they_should_begin_anew_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.CALL_TIMEOUT", 0.3)

    async def story(weft):
        await weft.hear_right(*crowd())
        assert weft.num_replaced
    play(story, tmp_path, faults="step_error@decode:3;hang@reset:2")


@pytest.mark.slow
@pytest.mark.parametrize("defects", ["wrong@decode:{}:token", "refuse@decode:{}", "refuse@filter:{}"])
def test_the_third_defect_within_a_minute_replaces_the_shards(tmp_path, defects):
    async def story(weft):
        for request in crowd():
            await weft.hear_right(request)
            await weft.settle()
        assert (len(weft.broken), weft.num_replaced) == (1, 1)
    play(story, tmp_path, faults=";".join(defects.format(nth) for nth in (1, 3, 5)))


def test_a_defect_now_and_then_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "DEFECT_WINDOW", 0.0)

    async def story(weft):
        await weft.hear_right(*crowd())
        assert not weft.broken
    play(story, tmp_path, faults=";".join(f"refuse@decode:{nth}" for nth in (1, 2, 3, 4)))


@pytest.mark.parametrize("faults", ["step_error@decode:3", "late@decode:3:0.05", "wrong@decode:3:token"])
def test_of_several_ranks_all_are_replaced_when_one_fails_in_a_step(tmp_path, faults):
    """Other failures keep the ranks. After one rank fails in a step, the others may wait forever in a collective."""
    async def story(weft):
        await weft.hear_right(*crowd())
        await weft.check_idle()
        assert weft.num_replaced == len(weft.broken) == faults.startswith("step_error")
    play(story, tmp_path, faults=faults, ranks=2)


@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("faults", [f"fail_sequence@{step}" for step in ("decode:3:0", "decode:3:2", "prefill:1:1")])
def test_a_sequence_that_fails_fails_alone(tmp_path, faults, policy):
    async def story(weft):
        everyone = await weft.hear(*crowd())
        errors = [str(heard.error) for heard in everyone if heard.error]
        assert errors == ["the model's output was not a number"]
        for heard in everyone:
            (heard.check_beginning if heard.error else heard.check)(weft.model)
        await weft.check_idle()
    play(story, tmp_path, faults=faults, prefill_policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_exactly_the_poisonous_request_fails(tmp_path, policy, look_ahead, ranks):
    async def story(weft):
        poisonous, *others = await weft.hear(ask(f"a {POISON}", 20), *crowd())
        assert isinstance(poisonous.error, GenerationFailed)
        for heard in others:
            heard.check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, faults=(f"poison@{POISON.encode()[0]}",) * ranks, ranks=ranks, prefill_policy=policy,
         look_ahead=look_ahead)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_a_request_that_kills_the_shards_again_and_again_fails_and_no_other(tmp_path, policy):
    async def story(weft):
        deadly, *others = await weft.hear(ask(f"a {POISON}", 20), *crowd())
        assert "died 3 times" in str(deadly.error)
        for heard in others:
            heard.check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, faults=f"poison@{POISON.encode()[0]}", worker=Mortal, prefill_policy=policy)
