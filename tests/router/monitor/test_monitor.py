"""Monitor of an engine over simulated shards: frames beside the recording of the same run, viewers, and nothing without
viewers."""

import asyncio
import json
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from copy import deepcopy
from random import Random

import pytest
from support.call_path_stats import HopCounter
from support.servers.expected_streams import make_text_request
from support.servers.in_process_server import play_scenario

from launcher.client.engine_events import EngineView
from router.engine.engine import Engine
from router.errors import MonitorBusy
from router.monitor import block_map
from router.monitor import monitor as monitor_module
from router.monitor.monitor import (
    MAX_SHOWN_WAITING,
    MAX_TENANT_VIEWERS,
    MAX_USER_VIEWERS,
    MAX_VIEWERS,
    render_event,
)
from router.monitor.step_observer import StepObserver
from router.monitor.viewer_rights import Viewer
from router.recording.recording_file import Recording, RecordingFolder
from router.recording.replay import Replay
from router.scheduler.block_pool import BlockPool
from router.scheduler.shard_messages import Prefill, StepPlan
from router.shards.shard_group import ShardGroup
from router.text.tokenizer import create_byte_tokenizer

VIEWER = Viewer("", is_admin=True)


def parse_event(data):
    head, body = data.decode().removesuffix("\n\n").split("data: ", 1)
    return head.split("\n")[0].removeprefix("event: "), json.loads(body)


@asynccontextmanager
async def watching(engine, viewer=VIEWER, since=None):
    """Watch the engine while the block runs, and yield the list that gets its events, parsed."""
    events = []
    monitor = engine.monitor

    def render_state():
        return render_event("state", json.dumps(monitor.describe_state(viewer)))

    with monitor.watch(viewer, render_state, since) as feed:
        async def collect():
            async for data in feed.iterate_events():
                events.append(parse_event(data))  # noqa: PERF401 - one by one, as others read them meanwhile

        task = asyncio.create_task(collect())
        await asyncio.sleep(0)
        try:
            yield events
            engine.monitor.send_frame()
            await asyncio.sleep(0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def join_steps(events):
    return [step for name, data in events if name == "frame" for step in data["steps"]]


class PlanCollector(Replay):
    """Replay that keeps the plans."""

    def __init__(self, recording):
        super().__init__(recording)
        self.plans = []

    def observe_call(self, call, result, scheduler):
        if isinstance(result, StepPlan) and result.member_ids:
            self.plans.append(result)


@pytest.mark.parametrize("settings", [{}, {"prefill_policy": "pause"}, {"batching": "static"}])
def test_frames_of_a_recorded_run_show_the_recorded_steps(tmp_path, settings):
    async def scenario(weft):
        await weft.engine.stop()
        folder = RecordingFolder(tmp_path / "recordings", weft.config)
        weft.engine = Engine(weft.config, ShardGroup(weft.shards.addresses), create_byte_tokenizer(),
                             recording_folder=folder)
        await weft.engine.start()
        async with watching(weft.engine) as events:
            await weft.check_streams(*(make_text_request(f"{number} looms " * number, 10 + number)
                                       for number in range(1, 13)))
            await weft.wait_for_steps_in_flight()
        weft.engine.write_recording("a test")
        await asyncio.to_thread(folder.close)
        [path] = (tmp_path / "recordings").glob("*")
        replay = PlanCollector(Recording(path))
        assert replay.run().difference is None
        steps = [step for step in join_steps(events) if step["rows"]]
        assert len(steps) == len(replay.plans) > 20
        for number, (step, plan) in enumerate(zip(steps, replay.plans, strict=True), 1):
            assert (step["step"], step["epoch"], step["message"]) == (number, plan.epoch, plan.last_message_number)
            assert [row[1] for row in step["rows"]] == [*plan.member_ids]
            message = plan.messages[-1]
            chunks = {chunk.sequence_id: chunk.length for chunk in message.chunks} if isinstance(message,
                                                                                                Prefill) else {}
            assert {row[1]: row[2] for row in step["rows"] if row[3] in "pf"} == chunks
    play_scenario(scenario, tmp_path, num_blocks=40, max_batch_size=5, **settings)


def test_nothing_is_called_while_nobody_watches(tmp_path):
    async def scenario(weft):
        assert weft.engine.monitor.observer is None
        await weft.check_streams(make_text_request("warm", 3))
        counter = HopCounter("router/monitor")
        with counter.counting():
            await weft.check_streams(make_text_request("one", 30), make_text_request("two", 30))
        assert counter.num_calls == 0
        async with watching(weft.engine):
            with counter.counting():
                await weft.check_streams(make_text_request("three", 30))
        assert counter.num_calls > 30
        assert weft.engine.monitor.observer is None
        await asyncio.sleep(0.01)  # for the task that sent frames to end
        before = counter.num_calls
        with counter.counting():
            await weft.check_streams(make_text_request("four", 30))
        assert counter.num_calls == before
    play_scenario(scenario, tmp_path)


def test_state_follows_from_state_and_frames(tmp_path):
    async def scenario(weft):
        async with watching(weft.engine) as events:
            streams = [weft.submit(f"{number} looms", 40) for number in range(5)]
            for _ in range(6):
                await weft.gate.wait_for_step()
                weft.gate.release_steps(1)
            while weft.gate.num_passed < 6 or join_steps(events)[-1:] == []:
                await asyncio.sleep(0)
                weft.engine.monitor.send_frame()
            state = weft.engine.monitor.describe_state(VIEWER)
            assert [(entry["id"], entry["lane"], entry["state"]) for entry in state["running"]] == [
                (1, 0, "decode"), (2, 1, "decode"), (3, 2, "decode")]
            assert [(entry["id"], entry["cause"]) for entry in state["queue"]["waiting"]] == [(4, "batch"),
                                                                                             (5, "queue")]
            assert state["queue"]["length"] == 2
            for stream in streams:
                stream.close()
            weft.gate.release_all()
            await weft.engine.wait_until_drained()
            await weft.wait_for_steps_in_flight()
        names = [name for name, _ in events]
        assert names[0] == "state"
        assert {*names[1:]} == {"frame"}
        cancelled = {number for step in join_steps(events) for _, number in step["cancelled"]}
        assert cancelled == {1, 2, 3}
        introduced = [entry["id"] for name, data in events if name == "frame" for entry in data["sequences"]]
        assert introduced[:3] == [1, 2, 3]
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=3)


def test_block_map_covers_all_blocks_and_names_their_holders(tmp_path, monkeypatch):
    async def scenario(weft):
        streams = [weft.submit("the same long beginning of a prompt " * 4 + f"{number}", 40) for number in range(3)]
        for _ in range(4):
            await weft.gate.wait_for_step()
            weft.gate.release_steps(1)
        described = weft.engine.monitor.describe_state(VIEWER)
        blocks = described["blocks"]
        assert sum(length for _, length in blocks["map"]) == blocks["total"] == 64
        assert blocks["used"] + blocks["cached"] + blocks["free"] == 64
        held = sum(length for who, length in blocks["map"] if who > 0)
        assert held + blocks["shared"] == blocks["used"] > 0
        assert {who for who, _ in blocks["map"]} <= {-2, -1, 0, 1, 2, 3}
        for stream in streams:
            stream.close()
        weft.gate.release_all()
        await weft.engine.wait_until_drained()
        await weft.wait_for_steps_in_flight()
        blocks = weft.engine.monitor.describe_state(VIEWER)["blocks"]
        assert (blocks["used"], blocks["shared"]) == (0, 0)
        assert {who for who, _ in blocks["map"]} <= {-1, 0}
    monkeypatch.setattr(block_map, "MAP_COST_FRACTION", float("inf"))  # a new map for each state
    play_scenario(scenario, tmp_path, gated=True, num_blocks=64)


def count_maps(monkeypatch):
    """Return a list that grows with each map of the blocks."""
    maps = []
    list_holders = BlockPool.list_holders

    def list_and_count(pool, tables):
        maps.append(tables)
        return list_holders(pool, tables)

    monkeypatch.setattr(BlockPool, "list_holders", list_and_count)
    return maps


def test_states_share_a_map_of_blocks_until_a_new_one_is_due(tmp_path, monkeypatch):
    """Regression: each state made one, 0.1 s for a large cache."""
    async def scenario(weft):
        maps = count_maps(monkeypatch)
        described = [weft.engine.monitor.describe_state(VIEWER)["blocks"] for _ in range(20)]
        assert len(maps) == 1
        assert described == described[:1] * 20
        monkeypatch.setattr(monitor_module, "clock", lambda: time.monotonic() + 1e7)
        weft.engine.monitor.describe_state(VIEWER)
        assert len(maps) == 2
    monkeypatch.setattr(block_map, "MAP_COST_FRACTION", 1e-9)
    play_scenario(scenario, tmp_path)


def test_states_do_not_take_the_map_from_frames(tmp_path, monkeypatch):
    """Regression: the map of a state counted as sent, so that no frame had it while somebody asked for states."""
    async def scenario(weft):
        monitor, shift, holder = weft.engine.monitor, 0.0, 0
        monkeypatch.setattr(monitor_module, "clock", lambda: time.monotonic() + shift)
        monkeypatch.setattr(BlockPool, "list_holders", lambda *_: [holder] * 256)
        async with watching(weft.engine) as events:
            for holder in range(1, 5):  # noqa: B007 - the pool has it
                monitor.describe_state(VIEWER)
                shift += 1.0
                monitor.send_frame()
                await asyncio.sleep(0)
        maps = [data["blocks"]["map"] for name, data in events if name == "frame" and "map" in data["blocks"]]
        assert maps == [[[holder, 256]] for holder in range(1, 5)]
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    monkeypatch.setattr(block_map, "MAP_COST_FRACTION", float("inf"))
    play_scenario(scenario, tmp_path)


def test_map_is_in_a_frame_only_when_it_is_due_and_has_changed(tmp_path, monkeypatch):
    async def scenario(weft):
        monitor, now, holder = weft.engine.monitor, 100.0, 0
        monkeypatch.setattr(monitor_module, "clock", lambda: now)
        monkeypatch.setattr(BlockPool, "list_holders", lambda *_: [holder] * 256)
        async with watching(weft.engine) as events:
            for holder, now in ((1, 101.0), (1, 102.0), (2, 103.0), (3, 103.4), (3, 103.6), (4, 103.8)):  # noqa: B007
                monitor._last_frame_at = 0.0  # so that one is due
                monitor.send_frame()
                await asyncio.sleep(0)
        maps = [data["blocks"].get("map") for name, data in events if name == "frame"]
        assert maps[:6] == [[[1, 256]], None, [[2, 256]], None, [[3, 256]], None]
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    monkeypatch.setattr(block_map, "MAP_COST_FRACTION", float("inf"))
    play_scenario(scenario, tmp_path)


def test_shared_blocks_are_never_more_than_used_ones(tmp_path):
    """Regression: "0 used (4 shared)", as the map was older than the counts."""
    async def scenario(weft):
        block_map = weft.engine.monitor._block_map
        block_map._num_shared = 4
        assert (block_map.describe_counts()["used"], block_map.describe_counts()["shared"]) == (0, 0)
    play_scenario(scenario, tmp_path)


@pytest.mark.parametrize("settings", [{}, {"prefill_policy": "pause"}, {"look_ahead": 1}])
def test_viewers_that_join_later_see_what_the_first_one_sees(tmp_path, monkeypatch, settings):
    """Regression: a state counted the steps that the next frame had, too, and chunks of prompts in flight."""
    async def scenario(weft):
        monitor, random = weft.engine.monitor, Random(1)
        async with AsyncExitStack() as stack:
            viewers = [await stack.enter_async_context(watching(weft.engine))]
            streams = [weft.submit(f"{number} looms " * (3 * number + 1), 60 + number) for number in range(9)]
            for number in range(45):
                await weft.gate.wait_for_step()
                weft.gate.release_steps(1)
                for _ in range(random.randrange(30)):
                    await asyncio.sleep(0)
                if number % 3 == 0:
                    viewers.append(await stack.enter_async_context(watching(weft.engine)))
                if number == 20:
                    streams[0].close()
                if random.random() < 0.4:
                    monitor.send_frame()
            await weft.gate.wait_for_step()
            for _ in range(30):
                await asyncio.sleep(0)
            monitor.send_frame()
            await asyncio.sleep(0)
            first, *others = [summarize_view(events) for events in viewers]
            assert len(first) == 4
            assert [other for other in others if other != first] == []
            assert any(num_generated > 5 for _, _, _, num_generated in first.values())
            for stream in streams[1:]:
                stream.close()
            weft.gate.release_all()
            await weft.engine.wait_until_drained()
            await weft.wait_for_steps_in_flight()
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path, gated=True, max_batch_size=4, max_batch_prefill_tokens=32, **settings)


def summarize_view(events):
    """Return lane, state, prefilled and generated tokens by sequence, as the events tell."""
    view = EngineView()
    for event in deepcopy(events):
        view.apply(event)
    return {number: (sequence.lane, sequence.state, sequence.num_prefilled, sequence.num_generated)
            for number, sequence in view.running.items()}


def test_frames_tell_when_the_server_gets_or_loses_its_shards(tmp_path, monkeypatch):
    """Regression: a viewer that had come while the shards were lost was shown a server that is not ready for ever."""
    async def scenario(weft):
        monitor, health = weft.engine.monitor, weft.engine.health
        async with watching(weft.engine) as one:
            async def send():
                monitor.send_frame()
                await asyncio.sleep(0)
                return [data.get("server") for _, data in one if "steps" in data][-1]

            assert await send() is None
            health.set_unready("the shards are lost")
            weft.engine.has_shards = False
            assert await send() == {"ready": False, "not_ready_reason": "the shards are lost", "has_shards": False}
            async with watching(weft.engine) as two:
                health.set_ready()
                weft.engine.has_shards = True
                ready = {"ready": True, "not_ready_reason": None, "has_shards": True}
                assert await send() == ready
            num_events = len(one)
            monitor.send_frame()
            await asyncio.sleep(0)
            assert len(one) == num_events  # nothing has changed
            assert [data["server"] for name, data in two if "server" in data] == [ready]
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path)


def test_readiness_that_only_a_state_had_is_told_again(tmp_path, monkeypatch):
    async def scenario(weft):
        monitor, health = weft.engine.monitor, weft.engine.health
        async with watching(weft.engine) as one:
            health.set_unready("the shards are lost")
            async with watching(weft.engine) as two:
                health.set_ready()
                monitor.send_frame()
                await asyncio.sleep(0)
            assert [data["server"]["ready"] for _, data in two if "server" in data] == [True]
            assert [data for _, data in one if "server" in data] == []
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path)


def test_frame_comes_when_something_has_changed_or_after_a_second(tmp_path, monkeypatch):
    async def scenario(weft):
        async with watching(weft.engine) as events:
            monitor = weft.engine.monitor
            monitor.send_frame()
            await asyncio.sleep(0)
            num_events = len(events)
            monitor.send_frame()
            await asyncio.sleep(0)
            assert len(events) == num_events
            monkeypatch.setattr(monitor_module, "clock", lambda: asyncio.get_running_loop().time() + 2.0)
            monitor.send_frame()
            await asyncio.sleep(0)
            assert len(events) == num_events + 1
            assert events[-1][1]["steps"] == []
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path)


def test_viewer_that_does_not_read_loses_frames_and_gets_a_state_then(tmp_path):
    async def scenario(weft):
        monitor = weft.engine.monitor
        with monitor.watch(VIEWER, lambda: render_event("state", json.dumps(monitor.describe_state(VIEWER)))) as feed:
            iterator = feed.iterate_events()
            name, state = parse_event(await anext(iterator))
            assert (name, state["step"]) == ("state", 0)
            await weft.check_streams(make_text_request("one", 30))
            for _ in range(3):
                monitor.send_frame()
            assert not feed.is_waiting
            name, state = parse_event(await anext(iterator))
            assert name == "state"
            assert state["step"] >= 30
            await iterator.aclose()
    play_scenario(scenario, tmp_path)


def test_frames_are_rendered_once_for_viewers_with_equal_rights(tmp_path, monkeypatch):
    async def scenario(weft):
        async with watching(weft.engine) as one, watching(weft.engine) as two, \
                watching(weft.engine, Viewer("other", is_admin=False)) as other:
            await weft.check_streams(make_text_request("one", 5))
            weft.engine.monitor.send_frame()
            await asyncio.sleep(0)
            assert join_steps(one) == join_steps(two) == join_steps(other) != []
            assert [data["sequences"] for name, data in one if name == "frame" and data["sequences"]] != [
                data["sequences"] for name, data in other if name == "frame" and data["sequences"]]
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path)


def test_viewers_beyond_the_limit_are_refused_with_the_reason(tmp_path):
    async def scenario(weft):
        monitor = weft.engine.monitor
        with ExitStack() as viewers:
            for _ in range(MAX_VIEWERS):
                viewers.enter_context(monitor.watch(VIEWER, lambda: b"state"))
            with pytest.raises(MonitorBusy, match=f"{MAX_VIEWERS} viewers watch the engine already"), \
                    monitor.watch(VIEWER, lambda: b"state"):
                pass
            assert monitor.describe_state(VIEWER)["watch"]["viewers"] == MAX_VIEWERS
        with monitor.watch(VIEWER, lambda: b"state"):
            assert isinstance(monitor.observer, StepObserver)
        assert monitor.observer is None
    play_scenario(scenario, tmp_path)


def test_keys_of_users_leave_places_for_others(tmp_path):
    """Regression: one tenant could take all places, and an admin key was refused."""
    async def scenario(weft):
        monitor = weft.engine.monitor

        def watch_as(name, *, is_admin=False):
            return monitor.watch(Viewer(name, is_admin), lambda: b"state")

        with ExitStack() as viewers:
            for _ in range(MAX_TENANT_VIEWERS):
                viewers.enter_context(watch_as("a"))
            with pytest.raises(MonitorBusy, match=f"{MAX_TENANT_VIEWERS} viewers of this tenant watch"), watch_as("a"):
                pass
            for _ in range(MAX_USER_VIEWERS - MAX_TENANT_VIEWERS):
                viewers.enter_context(watch_as("b"))
            with pytest.raises(MonitorBusy, match=f"{MAX_USER_VIEWERS} viewers without an admin key"), watch_as("b"):
                pass
            for _ in range(MAX_VIEWERS - MAX_USER_VIEWERS):
                viewers.enter_context(watch_as("a", is_admin=True))
            with pytest.raises(MonitorBusy, match=f"{MAX_VIEWERS} viewers watch"), watch_as("a", is_admin=True):
                pass
    play_scenario(scenario, tmp_path)


def test_buffered_steps_can_be_had_again(tmp_path):
    async def scenario(weft):
        monitor = weft.engine.monitor
        async with watching(weft.engine) as events:
            await weft.check_streams(make_text_request("one", 20))
            await weft.wait_for_steps_in_flight()
        steps = join_steps(events)
        await weft.check_streams(make_text_request("unseen", 5))
        async with watching(weft.engine, since=steps[4]["step"]) as later:
            await asyncio.sleep(0)
        assert [name for name, _ in later[:2]] == ["state", "frame"]
        assert later[1][1]["steps"] == steps[5:]
        assert [entry["id"] for entry in later[1][1]["sequences"]] == [1]
        step_range = monitor.get_buffered_step_range(2, 4)
        assert [step.number for step in step_range.steps] == [3, 4]
        assert {*step_range.sequences} == {1}
        assert monitor.get_buffered_step_range(10_000).steps == []
        assert monitor._buffer_timer is not None
        monitor._clear_buffer()
        assert monitor.get_buffered_step_range().steps == []
    play_scenario(scenario, tmp_path)


def test_buffer_is_bounded(tmp_path, monkeypatch):
    async def scenario(weft):
        monitor = weft.engine.monitor
        monitor._max_sequences = 4
        async with watching(weft.engine):
            for number in range(12):
                await weft.check_streams(make_text_request(f"{number}", 3))
                monitor.send_frame()
            assert len(monitor._buffered_steps) <= monitor_module.MAX_BUFFERED_STEPS
            assert len(monitor.observer.sequences) <= 12
            assert 1 not in monitor.observer.sequences
            assert monitor._shown_ids <= monitor.observer.sequences.keys() | {12}
    monkeypatch.setattr(monitor_module, "MAX_BUFFERED_STEPS", 5)
    original = monitor_module.EngineMonitor.__init__

    def init(self, *arguments):
        original(self, *arguments)
        self._buffered_steps = type(self._buffered_steps)(maxlen=5)

    monkeypatch.setattr(monitor_module.EngineMonitor, "__init__", init)
    play_scenario(scenario, tmp_path)


def test_text_is_only_there_if_the_viewer_may_read_it(tmp_path):
    async def scenario(weft):
        stream = weft.submit("a loom", 40)
        for _ in range(8):
            await weft.gate.wait_for_step()
            weft.gate.release_steps(1)
        await asyncio.sleep(0.05)
        monitor = weft.engine.monitor
        [plain] = monitor.describe_state(VIEWER)["running"]
        [shown] = monitor.describe_state(Viewer("", is_admin=False, shows_text=True))["running"]
        [foreign] = monitor.describe_state(Viewer("b", is_admin=False, shows_text=True))["running"]
        assert "text" not in plain
        assert "text" not in foreign
        assert shown["text"]
        stream.close()
        weft.gate.release_all()
        await weft.engine.wait_until_drained()
        await weft.wait_for_steps_in_flight()
    play_scenario(scenario, tmp_path, gated=True)


def test_queue_is_shown_up_to_a_limit(tmp_path):
    async def scenario(weft):
        streams = [weft.submit(f"{number}", 5) for number in range(MAX_SHOWN_WAITING + 20)]
        queue = weft.engine.monitor.describe_state(VIEWER)["queue"]
        assert len(queue["waiting"]) == MAX_SHOWN_WAITING
        assert queue["length"] == len(streams)
        for stream in streams:
            stream.close()
    play_scenario(scenario, tmp_path, max_concurrent_requests=500)


def test_length_of_the_queue_is_sent_when_no_shown_entry_changes(tmp_path, monkeypatch):
    """Regression: a request that came behind the shown ones changed nothing for those who watch."""
    async def scenario(weft):
        async with watching(weft.engine) as events:
            lengths, streams = [], [weft.submit("a loom", 5)]
            await weft.gate.wait_for_step()  # no other one enters before it ends
            for _ in range(2):
                streams += [weft.submit("a loom", 5) for _ in range(MAX_SHOWN_WAITING + 5)]
                weft.engine.monitor.send_frame()
                await asyncio.sleep(0)
                lengths.append([data["queue"]["length"] for _, data in events if "queue" in data][-1])
                assert lengths[-1] == len(weft.scheduler.waiting)
            assert lengths[1] > lengths[0] > MAX_SHOWN_WAITING
            for stream in streams:
                stream.close()
            weft.gate.release_all()
            await weft.engine.wait_until_drained()
            await weft.wait_for_steps_in_flight()
    monkeypatch.setattr(monitor_module, "MAX_FRAMES_PER_SECOND", 0.01)
    play_scenario(scenario, tmp_path, gated=True, max_concurrent_requests=500, max_batch_size=1)


def test_lost_shards_are_shown(tmp_path):
    async def scenario(weft):
        async with watching(weft.engine) as events:
            await weft.check_streams(*(make_text_request(f"{number}", 20) for number in range(3)))
        steps = join_steps(events)
        [lost] = [step for step in steps if step["kind"] == "lost"]
        assert {number for _, number in lost["preempted"]} == {1, 2, 3}
        assert {step["epoch"] for step in steps if step["rows"]} == {1, 2}
    play_scenario(scenario, tmp_path, faults="die@decode:5")


def test_fault_of_the_monitor_ends_watching_and_nothing_else(tmp_path, caplog):
    async def scenario(weft):
        monitor = weft.engine.monitor
        async with watching(weft.engine) as events:
            monitor.observer.take_observed_steps = None
            await asyncio.wait([monitor._frame_task])
            await asyncio.sleep(0)
            assert monitor.observer is None
            await weft.check_streams(make_text_request("one", 5))
            monitor.send_frame = lambda: None
            assert [name for name, _ in events] == ["state"]
        assert "can no longer be watched" in caplog.text
    play_scenario(scenario, tmp_path)


def test_end_of_the_engine_ends_the_events(tmp_path):
    async def scenario(weft):
        with weft.engine.monitor.watch(VIEWER, lambda: b"state") as feed:
            events = [event async for event in end_soon(feed, weft.engine.monitor)]
            assert events[0] == b"state"
    play_scenario(scenario, tmp_path)


async def end_soon(feed, monitor):
    async for event in feed.iterate_events():
        yield event
        asyncio.get_running_loop().call_soon(monitor.close)
