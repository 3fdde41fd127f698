"""Tests of shard failures over real gRPC: streams continue with the right tokens, or only the faulty request fails."""

import asyncio

import pytest
from support.scheduling.method_overrides import override_methods
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import play_scenario

from router.engine import engine
from router.errors import GenerationFailed, InvalidRequest
from shard.simulator.worker import SimulatedStepError, SimulatedWorker

POISON_CHARACTER = "\N{LATIN SMALL LETTER U WITH DIAERESIS}"  # a letter that no other prompt holds
DECODE_FAULTS = ["die@decode:3", "refuse@decode:3", "step_error@decode:3", "exhaust@decode:3", "wrong@decode:3:missing",
                 "late@decode:3:0.02"]
OTHER_FAULTS = ["die@prefill:1", "die@filter:1", "refuse@prefill:1", "refuse@filter:1", "step_error@prefill:1",
                "step_error@filter:1", "slow@decode:3:0.02", "late@prefill:1:0.02", "wrong@decode:3:unknown",
                "wrong@decode:3:token", "wrong@decode:3:count", "wrong@prefill:1:missing",
                "die@decode:2;refuse@decode:5;step_error@decode:9"]
CONCAT_FAULTS = ["die@concat:1", "refuse@concat:1", "step_error@concat:1"]


class WorkerKilledByPoison(SimulatedWorker):
    """Worker that exits on a poisoned prompt instead of failing its step."""

    def _prepare_sequence(self, sequence):
        try:
            super()._prepare_sequence(sequence)
        except SimulatedStepError:
            self._exit()


def make_requests(num_requests=6):
    """Return requests that end one after the other, some by a stop string."""
    return [make_text_request(f"{number} " * 20, 12 + 3 * number, stop_strings=("oo",) * (number % 2))
            for number in range(num_requests)]


def has_fault_fired(weft):
    return weft.num_replacements or any(fault.has_fired for rank in weft.ranks for fault in rank.worker.faults)


@pytest.mark.parametrize(("policy", "look_ahead", "faults"), [
    *(("mixed", 2, faults) for faults in DECODE_FAULTS + OTHER_FAULTS),
    *(("mixed", 1, faults) for faults in DECODE_FAULTS),
    *(("pause", 2, faults) for faults in DECODE_FAULTS + CONCAT_FAULTS),
    *(("pause", 1, faults) for faults in CONCAT_FAULTS)])
def test_faults_do_not_change_the_answers(tmp_path, policy, look_ahead, faults):
    async def scenario(weft):
        await weft.check_streams(*make_requests())
        await weft.check_idle()
        assert has_fault_fired(weft)
        assert not weft.replacement_reasons
    play_scenario(scenario, tmp_path, faults=faults, prefill_policy=policy, look_ahead=look_ahead, max_batch_size=4)


@pytest.mark.parametrize(("rank", "transport"), [
    (0, "stream"), (1, "unary"), *(pytest.param(rank, transport, marks=pytest.mark.long)
                                   for rank, transport in ((0, "unary"), (1, "stream")))])
@pytest.mark.parametrize("faults", [*DECODE_FAULTS, "step_error@filter:1"])
def test_faults_of_any_rank_do_not_change_the_answers(tmp_path, rank, faults, transport):
    async def scenario(weft):
        await weft.check_streams(*make_requests())
        await weft.check_idle()
        assert has_fault_fired(weft)
    play_scenario(scenario, tmp_path, faults=("", faults) if rank else (faults, ""), ranks=2, max_batch_size=4,
                  shard_transport=transport)


@pytest.mark.parametrize("ranks", [1, 2])
def test_lost_shards_are_noticed_while_idle(tmp_path, ranks):
    async def scenario(weft):
        lost = weft.watch_scheduler_calls("on_shards_lost")
        await weft.replace_ranks()
        await lost.get()
        assert weft.engine.why_unavailable()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_shards_can_be_replaced_while_idle(tmp_path, ranks):
    async def scenario(weft):
        await weft.check_streams(make_text_request())
        await weft.replace_ranks()
        await weft.check_streams(*make_requests())
        await weft.check_idle()
    play_scenario(scenario, tmp_path, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("faults", ["hang@decode:3", "hang@prefill:2", "hang@filter:1"])
def test_hanging_shards_are_replaced(tmp_path, faults, ranks):
    async def scenario(weft):
        await weft.check_streams(*make_requests())
        await weft.check_idle()
        assert {reason.partition(":")[0] for reason in weft.replacement_reasons} == {"deadline_exceeded"}
        assert weft.num_replacements
    play_scenario(scenario, tmp_path, faults=faults, ranks=ranks, max_batch_size=4, step_timeout=1.5)


@pytest.mark.parametrize("faults", ["exhaust@decode:3", "refuse@decode:3", "step_error@decode:3",
                                    "wrong@decode:3:token"])
def test_requests_go_on_where_no_shard_is_lost_even_if_they_are_not_to_wait_for_shards(tmp_path, faults):
    async def scenario(weft):
        connect_shards, streams = weft.engine._connect_shards, []

        async def submit_and_connect_shards(*expected):
            streams.append(asyncio.create_task(weft.check_streams(*make_requests())))  # meanwhile
            await asyncio.sleep(0)
            return await connect_shards(*expected)

        override_methods(weft.engine, _connect_shards=submit_and_connect_shards)
        await weft.check_streams(*make_requests())
        assert streams
        await asyncio.gather(*streams)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults=faults, on_shard_loss="fail")


@pytest.mark.slow
def test_shards_that_hang_in_reset_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.CALL_TIMEOUT_SECONDS", 0.3)

    async def scenario(weft):
        await weft.check_streams(*make_requests())
        assert weft.num_replacements
    play_scenario(scenario, tmp_path, faults="step_error@decode:3;hang@reset:2")


@pytest.mark.slow
@pytest.mark.parametrize("defects", ["wrong@decode:{}:token", "refuse@decode:{}", "refuse@filter:{}"])
def test_the_third_defect_within_a_minute_replaces_the_shards(tmp_path, defects):
    async def scenario(weft):
        for request in make_requests():
            await weft.check_streams(request)
            await weft.wait_for_steps_in_flight()
        assert (len(weft.replacement_reasons), weft.num_replacements) == (1, 1)
    play_scenario(scenario, tmp_path, faults=";".join(defects.format(nth) for nth in (1, 3, 5)))


def test_rare_defects_do_not_replace_the_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "DEFECT_WINDOW_SECONDS", 0.0)

    async def scenario(weft):
        await weft.check_streams(*make_requests())
        assert not weft.replacement_reasons
    play_scenario(scenario, tmp_path, faults=";".join(f"refuse@decode:{nth}" for nth in (1, 2, 3, 4)))


@pytest.mark.parametrize("faults", ["step_error@decode:3", "late@decode:3:0.05", "wrong@decode:3:token"])
def test_step_error_of_one_rank_replaces_all_ranks(tmp_path, faults):
    """Other failures keep the ranks. After one rank fails in a step, the others may wait forever in a collective."""
    async def scenario(weft):
        await weft.check_streams(*make_requests())
        await weft.check_idle()
        assert weft.num_replacements == len(weft.replacement_reasons) == faults.startswith("step_error")
    play_scenario(scenario, tmp_path, faults=faults, ranks=2)


@pytest.mark.parametrize("policy", ["mixed", "pause"])
@pytest.mark.parametrize("faults", [f"fail_sequence@{step}" for step in ("decode:3:0", "decode:3:2", "prefill:1:1")])
def test_failing_sequence_does_not_fail_others(tmp_path, faults, policy):
    async def scenario(weft):
        streams = await weft.collect_streams(*make_requests())
        errors = [str(stream.error) for stream in streams if stream.error]
        assert errors == ["the model's output was not a number"]
        for stream in streams:
            (stream.check_partial_output if stream.error else stream.check_output)(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults=faults, prefill_policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_only_the_poisonous_request_fails(tmp_path, policy, look_ahead, ranks):
    async def scenario(weft):
        poisonous, *others = await weft.collect_streams(make_text_request(f"a {POISON_CHARACTER}", 20),
                                                        *make_requests())
        assert isinstance(poisonous.error, GenerationFailed)
        for stream in others:
            stream.check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults=(f"poison@{POISON_CHARACTER.encode()[0]}",) * ranks, ranks=ranks,
                  prefill_policy=policy, look_ahead=look_ahead)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed", "pause"])
def test_request_that_repeatedly_kills_shards_fails_alone(tmp_path, policy):
    async def scenario(weft):
        deadly, *others = await weft.collect_streams(make_text_request(f"a {POISON_CHARACTER}", 20), *make_requests())
        assert "died 3 times" in str(deadly.error)
        for stream in others:
            stream.check_output(weft.model)
        with pytest.raises(InvalidRequest, match="processes died several times with this prompt; it is refused for 6"):
            await weft.collect_streams(make_text_request(f"a {POISON_CHARACTER}", 5))
        [similar] = await weft.collect_streams(make_text_request("a ", 20))
        similar.check_output(weft.model)
        assert weft.excused_deaths == [3]
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults=f"poison@{POISON_CHARACTER.encode()[0]}", worker=WorkerKilledByPoison,
                  prefill_policy=policy)
