"""Engine against simulated shards over real gRPC. The tokens themselves are tested in tests/e2e."""

import asyncio
from dataclasses import replace

import pytest
from support.metrics_page import parse_metrics
from support.scheduling.method_overrides import override_methods
from support.servers.expected_streams import ReceivedStream, make_text_request
from support.servers.in_process_server import play_scenario, run_in_process_weft

from router.engine import engine, plans_in_flight
from router.engine.engine import Engine
from router.engine.output_stream import OutputBuilder
from router.errors import Cancelled, GenerationFailed, NotReady, Overloaded, TimedOut
from router.recording.recording_file import Recording, RecordingFolder
from router.recording.replay import Replay
from router.request import DEFAULT_TENANT, FinishReason
from router.scheduler.loadable_resource_cache import AdapterStatus
from router.scheduler.sequence import RUNNING_PHASES, RequestPhase
from router.shards.failures import ShardsLost
from router.shards.shard_group import ShardGroup
from router.text.tokenizer import create_byte_tokenizer
from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker


def get_waiting_seconds(timeline):
    return sum(seconds for cause, seconds in timeline.seconds_by_phase(0.0).items() if cause not in RUNNING_PHASES)


# -- starting and stopping


def test_engine_learns_model_info_from_the_shards(tmp_path):
    async def scenario(weft):
        facts = weft.engine.model_info
        assert (facts.model, facts.num_blocks, facts.block_size, facts.world_size) == ("simulated", 50, 32, 2)
        assert not weft.engine.why_unavailable()
        assert weft.rpc_counts == {"Info": 2, "Warmup": 1, "Reset": 1}
    play_scenario(scenario, tmp_path, num_blocks=50, block_size=32, ranks=2)


def test_restarted_router_starts_a_new_epoch(tmp_path):
    async def scenario(weft):
        await weft.check_streams(make_text_request())
        await weft.engine.stop()
        weft.engine = Engine(weft.config, ShardGroup(weft.shards.addresses), create_byte_tokenizer())
        await weft.engine.start()
        await weft.check_streams(make_text_request())
        assert (weft.rpc_counts["Warmup"], weft.ranks[0].worker.info().epoch) == (1, 2)
    play_scenario(scenario, tmp_path)


def test_shards_receive_the_trace_context_of_every_chunk(tmp_path):
    async def scenario(weft):
        await asyncio.gather(
            *(ReceivedStream.from_stream(weft.engine.submit(make_text_request(prompt, 3), traceparent=traceparent))
              for prompt, traceparent in (("a" * 100, "00-long"), ("b", ""))))
        chunks = [message.chunks for messages in weft.shards.sent_messages for message in messages
                  if isinstance(message, pb.PrefillRequest)]
        traced_lengths = [pair for part in chunks for pair in zip(part.lengths, part.traceparents, strict=False)]
        assert sum(length for length, traceparent in traced_lengths if traceparent) == 100
        assert {traceparent for _, traceparent in traced_lengths} <= {"", "00-long"}
        assert len(traced_lengths) > 2
        await weft.check_idle()
    play_scenario(scenario, tmp_path, max_batch_prefill_tokens=32)


def test_stopping_fails_unfinished_requests(tmp_path):
    async def scenario(weft):
        waiting = [asyncio.create_task(ReceivedStream.from_stream(weft.submit(f"{number}", 50))) for number in range(4)]
        await weft.gate.wait_for_step()
        weft.gate.release_steps(3)
        await weft.shards.wait_for_num_steps(4)
        await weft.engine.stop()
        for received in await asyncio.gather(*waiting):
            assert isinstance(received.error, NotReady)
            received.check_partial_output(weft.model)
        assert weft.engine.why_unavailable()
        with pytest.raises(NotReady):
            weft.submit()
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=2)


def test_request_finished_when_the_engine_stops_gets_its_result(tmp_path):
    """The core completed the step, but its tokens were not delivered yet."""
    async def scenario(weft):
        receive_task = asyncio.create_task(ReceivedStream.from_stream(weft.submit("a loom", 1)))
        complete, done = weft.scheduler.complete_step, asyncio.Event()

        def complete_and_signal(*args):
            done.set()
            return complete(*args)

        override_methods(weft.scheduler, complete_step=complete_and_signal)
        await weft.gate.wait_for_step()
        weft.gate.release_steps(1)
        await done.wait()
        assert not receive_task.done()
        await weft.engine.stop()
        (await receive_task).check_output(weft.model)
    play_scenario(scenario, tmp_path, gated=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopping_while_shards_hang_leaves_nothing_behind(tmp_path, ranks):
    async def scenario(weft):
        stream = weft.submit()
        await weft.shards.wait_for_num_steps(2)
        await weft.engine.stop()
        assert isinstance((await ReceivedStream.from_stream(stream)).error, NotReady)
    play_scenario(scenario, tmp_path, faults="hang@prefill:1", ranks=ranks)


def test_engine_can_stop_while_the_shards_are_lost(tmp_path):
    async def scenario(weft):
        stream = weft.submit("a loom", 100)
        lost = weft.watch_scheduler_calls("on_shards_lost")
        await weft.shards.wait_for_num_steps(2)
        await weft.ranks.pop().kill()
        await lost.get()
        await weft.engine.stop()
        assert isinstance((await ReceivedStream.from_stream(stream)).error, NotReady)
    play_scenario(scenario, tmp_path)


def test_drained_waits_for_requests_that_are_not_submitted(tmp_path):
    async def scenario(weft):
        weft.engine.arriving_requests.add("r")
        drained = asyncio.create_task(weft.engine.wait_until_drained())
        await asyncio.sleep(0)
        [received] = await weft.collect_streams(make_text_request("a loom", 3))
        assert not drained.done()
        weft.engine.arriving_requests.discard("r")
        await drained
        received.check_output(weft.model)
    play_scenario(scenario, tmp_path)


def test_drained_waits_until_no_request_is_unfinished(tmp_path):
    async def scenario(weft):
        await weft.engine.wait_until_drained()
        streams = [weft.submit("a loom", length) for length in (3, 9)]
        assert len(weft.engine._client_streams) == 2
        await weft.engine.wait_until_drained()
        assert len(weft.engine._client_streams) == 0
        for stream in streams:
            ReceivedStream(stream.request).add_events(await stream.wait_for_events())
    play_scenario(scenario, tmp_path)


# -- recordings


async def restart_with_recording(weft, folder):
    """Restart the engine with a folder for recordings, and return the folder."""
    await weft.engine.stop()
    recording_folder = RecordingFolder(folder, weft.config)
    weft.engine = Engine(weft.config, ShardGroup(weft.shards.addresses), create_byte_tokenizer(),
                         recording_folder=recording_folder)
    await weft.engine.start()
    return recording_folder


async def replay_recording(recording_folder, folder):
    await asyncio.to_thread(recording_folder.close)
    path, = folder.glob("*")
    return Recording(path), Replay(Recording(path)).run()


def test_recording_of_served_requests_replays_identically(tmp_path):
    async def scenario(weft):
        folder = await restart_with_recording(weft, tmp_path / "recordings")
        await weft.check_streams(*(make_text_request(f"{number} looms", 20) for number in range(6)))
        weft.engine.write_recording("a test")
        _, outcome = await replay_recording(folder, tmp_path / "recordings")
        assert outcome.difference is None
        assert outcome.num_events > 40
    play_scenario(scenario, tmp_path, num_blocks=12)


def test_failing_engine_writes_a_recording(tmp_path, monkeypatch):
    async def scenario(weft):
        folder = await restart_with_recording(weft, tmp_path / "recordings")
        monkeypatch.setattr(weft.engine._client_streams, "detokenize_result", None)
        received, = await weft.collect_streams(make_text_request())
        assert isinstance(received.error, NotReady)
        recording, outcome = await replay_recording(folder, tmp_path / "recordings")
        assert "the engine's loop failed" in recording.path.read_text()
        assert outcome.difference is None
    play_scenario(scenario, tmp_path)


def test_invalid_shard_replies_write_a_recording(tmp_path):
    async def scenario(weft):
        folder = await restart_with_recording(weft, tmp_path / "recordings")
        await weft.check_streams(make_text_request())
        _, outcome = await replay_recording(folder, tmp_path / "recordings")
        assert outcome.difference is None
    play_scenario(scenario, tmp_path, faults="wrong@decode:3:missing")


def test_nothing_is_recorded_without_a_folder_or_with_zero_minutes(tmp_path, caplog):
    async def scenario(weft):
        weft.engine.write_recording("a test")
        await restart_with_recording(weft, tmp_path / "recordings")
        weft.engine.write_recording("a test")
        assert caplog.messages.count("nothing is recorded (--record-minutes 0)") == 2
        assert not (tmp_path / "recordings").exists()
    play_scenario(scenario, tmp_path, record_minutes=0)


# -- admission


def test_requests_beyond_the_concurrency_limit_are_rejected(tmp_path):
    async def scenario(weft):
        first = weft.submit()
        with pytest.raises(Overloaded, match="--max-concurrent-requests 1") as refused:
            weft.submit()
        assert refused.value.retry_after > 0
        (await ReceivedStream.from_stream(first)).check_output(weft.model)
        await weft.check_streams(make_text_request())
    play_scenario(scenario, tmp_path, max_concurrent_requests=1)


def test_request_that_never_fits_fails_at_once_without_affecting_others(tmp_path):
    async def scenario(weft):
        too_long, other = await weft.collect_streams(make_text_request("a loom", 200), make_text_request("a loom", 20))
        assert isinstance(too_long.error, GenerationFailed)
        other.check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, num_blocks=8)


def test_request_during_a_shard_loss_is_served_after_recovery(tmp_path):
    async def scenario(weft):
        first = asyncio.create_task(ReceivedStream.from_stream(weft.submit("a loom", 40)))
        lost = weft.watch_scheduler_calls("on_shards_lost")
        await lost.get()
        assert weft.engine.why_unavailable()
        await weft.check_streams(make_text_request("another"))
        (await first).check_output(weft.model)
        assert not weft.engine.why_unavailable()
    play_scenario(scenario, tmp_path, faults="die@decode:3")


# -- leaving


def test_cancelled_request_frees_blocks_at_once_and_on_shards_with_the_next_message(tmp_path):
    async def scenario(weft):
        stays, leaves = weft.submit("a loom", 40), weft.submit("another", 40)
        await weft.gate.wait_for_step()
        weft.gate.release_steps(5)
        await weft.shards.wait_for_num_steps(6)
        leaves.close()
        assert len(weft.scheduler.running) == 1
        weft.gate.release_steps(3)  # two steps under way, and the next
        await weft.shards.wait_for_num_steps(9)
        assert len(weft.ranks[0].worker.shard_state.sequences) == 1
        weft.gate.release_all()
        (await ReceivedStream.from_stream(stays)).check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True)


def test_request_cancelled_while_the_shards_are_lost_is_dropped(tmp_path):
    async def scenario(weft):
        stream, lost = weft.submit("a loom", 40), weft.watch_scheduler_calls("on_shards_lost")
        await lost.get()
        stream.close()
        await weft.engine.wait_until_drained()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults="die@decode:3")


def test_closing_a_stream_twice_or_after_its_end_is_harmless(tmp_path):
    async def scenario(weft):
        stream = weft.submit("a loom", 5)
        (await ReceivedStream.from_stream(stream)).check_output(weft.model)
        stream.close()
        second_stream = weft.submit("a loom", 5)
        second_stream.close()
        second_stream.close()
        await weft.check_idle()
    play_scenario(scenario, tmp_path)


def test_closing_a_stream_before_its_end_is_delivered_is_harmless(tmp_path):
    async def scenario(weft):
        stream = weft.submit("a loom", 3)
        complete = weft.scheduler.complete_step

        def complete_and_close_stream(*args):
            events = complete(*args)
            asyncio.get_running_loop().call_soon(stream.close)
            return events

        override_methods(weft.scheduler, complete_step=complete_and_close_stream)
        await weft.check_idle()
    play_scenario(scenario, tmp_path)


# -- clients that do not read

SLOW_CLIENT_SETTINGS = {"slow_client_buffer": 4096, "slow_client_timeout": 60.0}


async def wait_until_suspended(weft, stream):
    held = weft.watch_scheduler_calls("suspend")
    await held.get()
    assert stream.num_bytes > weft.config.slow_client_buffer


def test_slow_client_is_suspended_while_others_continue(tmp_path):
    async def scenario(weft):
        slow = weft.submit("a loom", 90)
        await wait_until_suspended(weft, slow)
        await weft.check_streams(make_text_request("another", 40))
        await weft.wait_for_steps_in_flight()
        assert not len(weft.scheduler.running)
        assert not weft.ranks[0].worker.shard_state.sequences
        assert len(weft.engine._client_streams) == 1
        (await ReceivedStream.from_stream(slow)).check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **SLOW_CLIENT_SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_buffered_output_stays_within_the_limit_plus_steps_in_flight(tmp_path, tokens_per_step, look_ahead):
    async def scenario(weft):
        slow = weft.submit("a loom", 90)
        await wait_until_suspended(weft, slow)
        await weft.check_streams(make_text_request("another", 30))
        assert slow.num_bytes <= weft.config.slow_client_buffer + 130 * tokens_per_step * (1 + look_ahead)
        (await ReceivedStream.from_stream(slow)).check_output(weft.model)
    play_scenario(scenario, tmp_path, tokens_per_step=tokens_per_step, look_ahead=look_ahead, **SLOW_CLIENT_SETTINGS)


def test_repeatedly_slow_client_gets_every_token_once(tmp_path):
    async def scenario(weft):
        slow = weft.submit("a loom", 120)
        received, suspend_calls = ReceivedStream(slow.request), weft.watch_scheduler_calls("suspend")
        for _ in range(3):
            await suspend_calls.get()
            await weft.check_streams(make_text_request("another", 5))
            received.add_events(await slow.wait_for_events())
        while received.finished_event is None:
            received.add_events(await slow.wait_for_events())
        received.check_output(weft.model)
        assert weft.shards.num_reentered == 3
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **SLOW_CLIENT_SETTINGS)


def test_client_that_does_not_read_for_too_long_is_cancelled(tmp_path):
    async def scenario(weft):
        slow = weft.submit("a loom", 90)
        other = asyncio.create_task(ReceivedStream.from_stream(weft.submit("another", 50)))
        (await other).check_output(weft.model)
        await weft.engine.wait_until_drained()
        received = await ReceivedStream.from_stream(slow)
        assert isinstance(received.error, Cancelled)
        received.check_partial_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, slow_client_buffer=4096, slow_client_timeout=0.02)


def test_suspended_request_can_be_cancelled(tmp_path):
    async def scenario(weft):
        slow = weft.submit("a loom", 90)
        await wait_until_suspended(weft, slow)
        slow.close()
        await weft.check_idle()
    play_scenario(scenario, tmp_path, **SLOW_CLIENT_SETTINGS)


@pytest.mark.slow
def test_suspended_request_survives_a_shard_loss(tmp_path):
    async def scenario(weft):
        slow = weft.submit("a loom", 100)
        await wait_until_suspended(weft, slow)
        await weft.check_streams(make_text_request("another", 60))
        assert weft.num_replacements == 1
        (await ReceivedStream.from_stream(slow)).check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, faults="die@decode:60", **SLOW_CLIENT_SETTINGS)


# -- defects of our code


def test_scheduler_bug_fails_all_requests_and_is_reported(tmp_path):
    async def scenario(weft):
        streams = [weft.submit(f"{number}", 50) for number in range(3)]
        await weft.shards.wait_for_num_steps(5)

        def failing_plan(now):
            raise ZeroDivisionError

        override_methods(weft.scheduler, plan=failing_plan)
        for stream in streams:
            assert isinstance((await ReceivedStream.from_stream(stream)).error, NotReady)
        await weft.engine.wait_until_crashed()
        assert weft.engine.why_unavailable()
        await weft.engine.wait_until_drained()
        with pytest.raises(NotReady):
            weft.submit()
    play_scenario(scenario, tmp_path)


def test_delivery_bug_fails_only_its_own_request(tmp_path, monkeypatch):
    read = OutputBuilder.detokenize_row

    def failing_read(delivery, row):
        if delivery.request.prompt == tuple(b"clumsy") and len(delivery._text_pieces) == 4:
            raise ZeroDivisionError
        return read(delivery, row)

    monkeypatch.setattr(OutputBuilder, "detokenize_row", failing_read)

    async def scenario(weft):
        guilty, *others = await weft.collect_streams(make_text_request("clumsy", 20),
                                                     *(make_text_request(f"{number}", 20) for number in range(3)))
        assert isinstance(guilty.error, GenerationFailed)
        assert len(guilty.tokens) == 4
        for received in others:
            received.check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path)


def test_bug_at_the_end_of_delivery_fails_only_its_own_request(tmp_path, monkeypatch):
    finish = OutputBuilder.finish

    def failing_finish(delivery, reason):
        if delivery.request.prompt == tuple(b"clumsy"):
            raise ZeroDivisionError
        finish(delivery, reason)

    monkeypatch.setattr(OutputBuilder, "finish", failing_finish)

    async def scenario(weft):
        guilty, *others = await weft.collect_streams(make_text_request("clumsy", 5),
                                                     *(make_text_request(f"{number}", 20) for number in range(3)))
        assert isinstance(guilty.error, GenerationFailed)
        for received in others:
            received.check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path)


def test_request_whose_delivery_cannot_start_leaves_no_sequence_behind(tmp_path, monkeypatch):
    async def scenario(weft):
        with monkeypatch.context() as patch:
            patch.setattr(weft.tokenizer, "create_detokenizer", lambda _: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                weft.submit("clumsy", 50)
        assert not len(weft.scheduler.sequences)
        await weft.check_idle()
    play_scenario(scenario, tmp_path)


# -- results and records of a request


def test_prompt_logprobs_are_delivered_once_despite_a_shard_loss(tmp_path):
    async def scenario(weft):
        (received,) = await weft.collect_streams(make_text_request("x" * 100, 10, prompt_logprobs=True))
        assert weft.num_replacements == 1
        assert sorted(received.prompt_logprobs) == list(range(1, 100))
        received.check_output(weft.model)
    play_scenario(scenario, tmp_path, faults="die@prefill:3", max_batch_prefill_tokens=32)


def test_prompt_logprobs_larger_than_the_client_buffer_are_all_delivered(tmp_path):
    """A chunk's logprobs exceed the client's buffer, so the sequence is held and restarted until all are delivered."""
    async def scenario(weft):
        (received,) = await weft.collect_streams(make_text_request("x" * 400, 10, prompt_logprobs=True))
        assert sorted(received.prompt_logprobs) == list(range(1, 400))
        received.check_output(weft.model)
        assert weft.shards.num_reentered > 0
        await weft.check_idle()
    play_scenario(scenario, tmp_path, max_batch_prefill_tokens=128, **SLOW_CLIENT_SETTINGS)


def test_queue_time_ends_with_the_first_step(tmp_path, monkeypatch):
    async def scenario(weft):
        monkeypatch.setattr(engine, "now", lambda: float(weft.shards.num_steps))  # a second per step
        first, second = await weft.collect_streams(make_text_request("a loom", 30), make_text_request("another", 3))
        assert get_waiting_seconds(first.finished_event.timeline) == 0.0
        assert get_waiting_seconds(second.finished_event.timeline) == 30.0
        assert second.finished_event.timeline.seconds_by_phase(0.0).items() >= {RequestPhase.PREFILL: 1.0,
                                                                                RequestPhase.DECODE: 2.0}.items()
    play_scenario(scenario, tmp_path, max_batch_size=1, look_ahead=1)


def test_request_record_is_kept_while_running_and_after_finishing(tmp_path):
    async def scenario(weft):
        request = make_text_request("a loom", 5)
        stream = weft.engine.submit(request, arrived_at=engine.now() - 1.0)
        account = weft.engine.get_request_record(request.id)
        assert (account.state, account.num_prompt_tokens, account.num_generated) == ("waiting", 6, 0)
        assert account.timeline.submitted_at - account.arrived_at >= 1.0
        assert not weft.engine.can_use_request_id(request.id, DEFAULT_TENANT)
        (await ReceivedStream.from_stream(stream)).check_output(weft.model)
        assert weft.engine.get_request_record(request.id) is account
        assert (account.state, account.num_generated) == ("over", 5)
        assert weft.engine.can_use_request_id(request.id, DEFAULT_TENANT)
    play_scenario(scenario, tmp_path)


def test_records_of_failed_and_cancelled_requests_are_finished(tmp_path):
    async def scenario(weft):
        too_long, leaving, staying = (make_text_request("a loom", 200), make_text_request("a loom", 20),
                                      make_text_request("a loom", 20))
        streams = [weft.engine.submit(request) for request in (too_long, leaving, staying)]
        streams[1].close()
        assert [weft.engine.get_request_record(request.id).state for request in (too_long, leaving, staying)] == [
            "over", "over", "waiting"]
        assert isinstance((await ReceivedStream.from_stream(streams[0])).error, GenerationFailed)
        (await ReceivedStream.from_stream(streams[2])).check_output(weft.model)
    play_scenario(scenario, tmp_path, num_blocks=8)


# -- timeouts


def test_request_that_cannot_start_in_time_times_out_without_a_step_result(tmp_path):
    async def scenario(weft):
        first = weft.submit("a loom", 5)
        await weft.gate.wait_for_step()
        late = await ReceivedStream.from_stream(weft.submit("another", 5, timeout=0.01))
        assert isinstance(late.error, TimedOut)
        assert not late.tokens
        weft.gate.release_all()
        (await ReceivedStream.from_stream(first)).check_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=1)


def test_request_times_out_while_the_shards_are_lost(tmp_path):
    async def scenario(weft):
        lost = weft.watch_scheduler_calls("on_shards_lost")
        stream = weft.submit("a loom", 100)
        await weft.shards.wait_for_num_steps(2)
        await weft.ranks.pop().kill()
        await lost.get()
        assert isinstance((await ReceivedStream.from_stream(weft.submit("another", 5, timeout=0.01))).error, TimedOut)
        stream.close()
    play_scenario(scenario, tmp_path)


def test_running_request_past_its_deadline_times_out_when_the_shards_are_lost(tmp_path):
    """While it ran it would have ended with its next token; now there is none to wait for."""
    async def scenario(weft):
        on_timer, deadline_passed = weft.scheduler.on_timer, asyncio.Event()

        def on_timer_and_signal(now):
            deadline_passed.set()
            return on_timer(now)

        override_methods(weft.scheduler, on_timer=on_timer_and_signal)
        weft.replace_ranks = lambda: None
        stream = weft.submit("a loom", 100, timeout=0.02)
        await deadline_passed.wait()  # the first step is in flight
        await weft.ranks.pop().kill()
        assert isinstance((await ReceivedStream.from_stream(stream)).error, TimedOut)
    play_scenario(scenario, tmp_path, faults="die@prefill:1")


def test_running_request_that_times_out_ends_with_the_tokens_it_has(tmp_path, monkeypatch):
    async def scenario(weft):
        time = 0.0
        monkeypatch.setattr(engine, "now", lambda: time)
        stream = weft.submit("a loom", 20, timeout=5.0)
        await weft.gate.wait_for_step()
        weft.gate.release_steps(3)
        await weft.shards.wait_for_num_steps(5)
        time = 6.0
        weft.gate.release_all()
        received = await ReceivedStream.from_stream(stream)
        assert received.finished_event.finish_reason is FinishReason.TIMEOUT
        assert 3 <= len(received.tokens) == received.finished_event.num_tokens < 20
        assert received.finished_event.text == received.text
        received.check_partial_output(weft.model)
        await weft.check_idle()
    play_scenario(scenario, tmp_path, gated=True)


def test_step_events_are_delivered_before_expirations(tmp_path):
    async def scenario(weft):
        dispatched = []
        weft.engine._client_streams.dispatch_events = dispatched.append
        override_methods(weft.scheduler, on_timer=lambda now: ["expired"])
        weft.engine._queued_events = ["said"]
        weft.engine._wake_timer._fire()
        assert dispatched == [["said", "expired"]]
    play_scenario(scenario, tmp_path)


def test_engine_start_waits_for_the_shards(tmp_path):
    async def scenario(weft):
        await weft.engine.stop()
        (rank,) = weft.ranks
        await rank.kill()
        weft.engine = Engine(weft.config, ShardGroup(weft.shards.addresses), create_byte_tokenizer())
        starting = asyncio.create_task(weft.engine.start())
        weft.ranks = weft._make_ranks()
        await weft.ranks[0].start()
        await starting
        await weft.check_streams(make_text_request())
    play_scenario(scenario, tmp_path)


@pytest.mark.slow
def test_shards_that_hang_at_start_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.CALL_TIMEOUT_SECONDS", 0.3)

    async def scenario(weft):
        assert [reason.partition(":")[0] for reason in weft.replacement_reasons] == ["deadline_exceeded"]
        await weft.check_streams(make_text_request())
    play_scenario(scenario, tmp_path, faults="hang@reset:1")


@pytest.mark.slow
def test_shards_that_never_finish_warmup_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.WARMUP_TIMEOUT_SECONDS", 0.3)

    async def scenario(weft):
        assert [reason.partition(":")[0] for reason in weft.replacement_reasons] == ["deadline_exceeded"]
        await weft.check_streams(make_text_request())
    play_scenario(scenario, tmp_path, faults="hang@warmup:1")


def test_step_that_does_not_end_makes_the_server_unhealthy_until_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(plans_in_flight, "MIN_STEP_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(plans_in_flight, "SLOW_STEP_FACTOR", 0.0)

    async def scenario(weft):
        assert not weft.engine.why_unavailable()
        receive_task = asyncio.create_task(ReceivedStream.from_stream(weft.submit("a loom", 5)))
        await weft.gate.wait_for_step()
        assert "no step has ended" in weft.engine.why_unavailable()
        weft.gate.release_all()
        (await receive_task).check_output(weft.model)
        await weft.wait_for_steps_in_flight()
        assert not weft.engine.why_unavailable()
    play_scenario(scenario, tmp_path, gated=True)


@pytest.mark.parametrize(("faults", "ranks", "reason"), [
    ("refuse@warmup:1", 1, "told to refuse"), ("step_error@reset:1", 2, "told to fail")])
def test_unusable_shards_fail_the_start_and_leave_nothing_behind(tmp_path, faults, ranks, reason):
    with pytest.raises(ShardsLost, match=reason):
        play_scenario(pytest.fail, tmp_path, faults=faults, ranks=ranks)


class DifferentModelPerRankWorker(SimulatedWorker):
    """Simulated worker that serves a different model on every rank."""

    def info(self):
        answer = super().info()
        answer.model = f"model of rank {self._rank}"
        return answer


def test_ranks_with_different_models_are_rejected(tmp_path):
    with pytest.raises(ShardsLost, match="rank 1 serves another model than rank 0"):
        play_scenario(pytest.fail, tmp_path, ranks=2, worker=DifferentModelPerRankWorker)


def test_two_servers_in_one_process_do_not_interfere(tmp_path):
    """Two complete servers run in one process, since no module holds state."""
    async def scenario(first):
        (tmp_path / "other").mkdir()
        async with run_in_process_weft(tmp_path / "other", seed=1) as second:
            await asyncio.gather(first.check_streams(make_text_request()), second.check_streams(make_text_request()))
    play_scenario(scenario, tmp_path)


# -- adapters that no request needs


def make_adapter(weft, source="a", max_bytes=100):
    return weft.engine.adapter_grammar_controller.loader.get_or_register("adapter", source, max_bytes)


def test_adapter_can_be_loaded_without_a_request_and_unloaded(tmp_path):
    async def scenario(weft):
        resource = make_adapter(weft)
        assert [await weft.engine.adapter_grammar_controller.load(resource) for _ in range(2)] == ["", ""]
        assert weft.engine.adapter_grammar_controller.adapter_states == {resource: AdapterStatus("loaded", 0)}
        assert weft.engine.adapter_grammar_controller.loader.count_past_loads("a") == weft.rpc_counts["Load"] == 1
        removed = weft.watch_scheduler_calls("on_resource_unloaded")
        weft.engine.adapter_grammar_controller.request_resource_unload(resource)
        assert await removed.get() == resource
        assert weft.engine.adapter_grammar_controller.adapter_states == {}
        samples = parse_metrics(weft.engine.render_metrics_page())
        assert (samples['weft_adapter_loads{outcome="ok"}'], samples["weft_adapter_unloads"]) == (1, 1)
        assert samples["weft_adapter_load_seconds_count"] == 1
    play_scenario(scenario, tmp_path)


def test_load_returns_the_reason_of_a_failure(tmp_path):
    async def scenario(weft):
        controller = weft.engine.adapter_grammar_controller
        assert "takes no KIND_ADAPTER" in await controller.load(make_adapter(weft))
        assert "takes 5,000 bytes" in await controller.load(make_adapter(weft, "large", 5000))
        assert controller.loader.count_past_loads("a") == 0
    play_scenario(scenario, tmp_path, adapters=False, adapter_bytes=1000)


@pytest.mark.slow
def test_adapter_load_survives_a_shard_loss(tmp_path):
    async def scenario(weft):
        assert await weft.engine.adapter_grammar_controller.load(make_adapter(weft)) == ""
        assert weft.engine.adapter_grammar_controller.loader.count_past_loads("a") == 1
    play_scenario(scenario, tmp_path, faults="die@load:1")


def test_failed_adapter_load_can_be_retried(tmp_path):
    async def scenario(weft):
        assert [await weft.engine.adapter_grammar_controller.load(make_adapter(weft))
                for _ in range(2)] == ["told to refuse", ""]
    play_scenario(scenario, tmp_path, faults="refuse@load:1")


def test_adapter_that_no_longer_fits_after_a_shard_loss_is_reported(tmp_path):
    async def scenario(weft):
        await weft.ranks.pop().kill()
        loading = asyncio.create_task(weft.engine.adapter_grammar_controller.load(make_adapter(weft, max_bytes=900)))
        await asyncio.sleep(0)
        weft._configs = [replace(config, simulated=replace(config.simulated, adapter_bytes=500))
                         for config in weft._configs]
        weft.ranks = weft._make_ranks()
        for rank in weft.ranks:
            await rank.start()
        assert "there are 500 for adapters" in await loading
        assert weft.scheduler.waiting.set_aside_by_resource == {}
    play_scenario(scenario, tmp_path, adapter_bytes=1000)


def test_stopping_fails_pending_adapter_loads(tmp_path):
    async def scenario(weft):
        await weft.ranks.pop().kill()
        loading = asyncio.create_task(weft.engine.adapter_grammar_controller.load(make_adapter(weft)))
        await asyncio.sleep(0)
        await weft.engine.stop()
        with pytest.raises(NotReady):
            await loading
        with pytest.raises(NotReady):
            await weft.engine.adapter_grammar_controller.load(make_adapter(weft))
    play_scenario(scenario, tmp_path)
