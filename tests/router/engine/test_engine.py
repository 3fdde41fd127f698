"""Engine against simulated shards over real gRPC. The tokens themselves are tested in tests/e2e."""

import asyncio
from dataclasses import replace

import pytest
from support.expected_streams import Heard, ask
from support.in_process_server import play, weft
from support.metrics_page import read

from router.engine import engine, health
from router.engine.delivery import Delivery
from router.engine.engine import Engine
from router.errors import Cancelled, GenerationFailed, NotReady, Overloaded, TimedOut
from router.recording.file import Recording
from router.recording.replay import Replay
from router.recording.shelf import Shelf
from router.request import ANYONE, FinishReason
from router.scheduler.resource_cache import Standing
from router.scheduler.timeline import RUNNING, Cause
from router.shards.failures import ShardsLost
from router.shards.shard_group import Shards
from router.text.tokenizer import byte_tokenizer
from shard.pb import shard_pb2 as pb
from shard.simulator.worker import SimulatedWorker


def waited(story):
    return sum(seconds for cause, seconds in story.seconds(0.0).items() if cause not in RUNNING)


# -- starting and stopping


def test_the_engine_learns_what_the_shards_are(tmp_path):
    async def story(weft):
        facts = weft.engine.facts
        assert (facts.model, facts.num_blocks, facts.block_size, facts.world_size) == ("simulated", 50, 32, 2)
        assert not weft.engine.ailment()
        assert weft.calls == {"Info": 2, "Warmup": 1, "Reset": 1}
    play(story, tmp_path, num_blocks=50, block_size=32, ranks=2)


def test_a_router_that_is_started_again_begins_an_epoch_of_its_own(tmp_path):
    async def story(weft):
        await weft.hear_right(ask())
        await weft.engine.stop()
        weft.engine = Engine(weft.config, Shards(weft.shards.addresses), byte_tokenizer())
        await weft.engine.start()
        await weft.hear_right(ask())
        assert (weft.calls["Warmup"], weft.ranks[0].worker.info().epoch) == (1, 2)
    play(story, tmp_path)


def test_shards_hear_to_which_span_every_chunk_belongs(tmp_path):
    async def story(weft):
        await asyncio.gather(*(Heard.all_of(weft.engine.submit(ask(prompt, 3), traceparent=traceparent))
                               for prompt, traceparent in (("a" * 100, "00-long"), ("b", ""))))
        chunks = [message.chunks for messages in weft.shards.sent for message in messages
                  if isinstance(message, pb.PrefillRequest)]
        told = [pair for part in chunks for pair in zip(part.lengths, part.traceparents, strict=False)]
        assert sum(length for length, traceparent in told if traceparent) == 100
        assert {traceparent for _, traceparent in told} <= {"", "00-long"}
        assert len(told) > 2
        await weft.check_idle()
    play(story, tmp_path, max_batch_prefill_tokens=32)


def test_stopping_fails_whoever_is_still_served(tmp_path):
    async def story(weft):
        waiting = [asyncio.create_task(Heard.all_of(weft.submit(f"{number}", 50))) for number in range(4)]
        await weft.gate.arrival()
        weft.gate.let(3)
        await weft.shards.reach(4)
        await weft.engine.stop()
        for heard in await asyncio.gather(*waiting):
            assert isinstance(heard.error, NotReady)
            heard.check_beginning(weft.model)
        assert weft.engine.ailment()
        with pytest.raises(NotReady):
            weft.submit()
    play(story, tmp_path, gated=True, max_batch_size=2)


def test_who_is_finished_when_the_engine_stops_is_told_that(tmp_path, monkeypatch):
    """The core completed the step, but its tokens were not delivered yet."""
    async def story(weft):
        hearing = asyncio.create_task(Heard.all_of(weft.submit("a loom", 1)))
        complete, done = weft.core.complete, asyncio.Event()

        def watched(*args):
            done.set()
            return complete(*args)

        monkeypatch.setattr(weft.core, "complete", watched)
        await weft.gate.arrival()
        weft.gate.let(1)
        await done.wait()
        assert not hearing.done()
        await weft.engine.stop()
        (await hearing).check(weft.model)
    play(story, tmp_path, gated=True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopping_while_shards_hang_leaves_nothing_behind(tmp_path, ranks):
    async def story(weft):
        stream = weft.submit()
        await weft.shards.reach(2)
        await weft.engine.stop()
        assert isinstance((await Heard.all_of(stream)).error, NotReady)
    play(story, tmp_path, faults="hang@prefill:1", ranks=ranks)


def test_stopping_while_the_shards_are_away(tmp_path):
    async def story(weft):
        stream = weft.submit("a loom", 100)
        lost = weft.watch("shards_lost")
        await weft.shards.reach(2)
        await weft.ranks.pop().kill()
        await lost.get()
        await weft.engine.stop()
        assert isinstance((await Heard.all_of(stream)).error, NotReady)
    play(story, tmp_path)


def test_drained_means_that_nobody_is_left(tmp_path):
    async def story(weft):
        await weft.engine.drained()
        streams = [weft.submit("a loom", length) for length in (3, 9)]
        assert weft.engine.num_unfinished == 2
        await weft.engine.drained()
        assert weft.engine.num_unfinished == 0
        for stream in streams:
            Heard(stream.request).take(await stream.events())
    play(story, tmp_path)


# -- recordings


async def recorded(weft, folder):
    """Restart the engine with a shelf for recordings, and return the shelf."""
    await weft.engine.stop()
    shelf = Shelf(folder, weft.config)
    weft.engine = Engine(weft.config, Shards(weft.shards.addresses), byte_tokenizer(), shelf=shelf)
    await weft.engine.start()
    return shelf


async def replayed(shelf, folder):
    await asyncio.to_thread(shelf.close)
    path, = folder.glob("*")
    return Recording(path), Replay(Recording(path)).run()


def test_what_was_served_can_be_written_down_and_replays(tmp_path):
    async def story(weft):
        shelf = await recorded(weft, tmp_path / "recordings")
        await weft.hear_right(*(ask(f"{number} looms", 20) for number in range(6)))
        weft.engine.write_recording("a test")
        _, outcome = await replayed(shelf, tmp_path / "recordings")
        assert outcome.difference is None
        assert outcome.num_events > 40
    play(story, tmp_path, num_blocks=12)


def test_an_engine_that_fails_leaves_a_recording(tmp_path, monkeypatch):
    async def story(weft):
        shelf = await recorded(weft, tmp_path / "recordings")
        monkeypatch.setattr(weft.engine._clients, "read", None)
        heard, = await weft.hear(ask())
        assert isinstance(heard.error, NotReady)
        recording, outcome = await replayed(shelf, tmp_path / "recordings")
        assert "the engine's loop failed" in recording.path.read_text()
        assert outcome.difference is None
    play(story, tmp_path)


def test_shards_that_make_no_sense_leave_a_recording(tmp_path):
    async def story(weft):
        shelf = await recorded(weft, tmp_path / "recordings")
        await weft.hear_right(ask())
        _, outcome = await replayed(shelf, tmp_path / "recordings")
        assert outcome.difference is None
    play(story, tmp_path, faults="wrong@decode:3:missing")


def test_without_a_shelf_or_without_minutes_nothing_is_recorded(tmp_path, caplog):
    async def story(weft):
        weft.engine.write_recording("a test")
        await recorded(weft, tmp_path / "recordings")
        weft.engine.write_recording("a test")
        assert caplog.messages.count("nothing is recorded (--record-minutes 0)") == 2
        assert not (tmp_path / "recordings").exists()
    play(story, tmp_path, record_minutes=0)


# -- admission


def test_more_requests_than_the_house_holds_are_refused(tmp_path):
    async def story(weft):
        first = weft.submit()
        with pytest.raises(Overloaded, match="--max-concurrent-requests 1") as refused:
            weft.submit()
        assert refused.value.retry_after > 0
        (await Heard.all_of(first)).check(weft.model)
        await weft.hear_right(ask())
    play(story, tmp_path, max_concurrent_requests=1)


def test_what_can_never_fit_fails_at_once_and_alone(tmp_path):
    async def story(weft):
        heard, other = await weft.hear(ask("a loom", 200), ask("a loom", 20))
        assert isinstance(heard.error, GenerationFailed)
        other.check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, num_blocks=8)


def test_who_comes_while_the_shards_are_away_is_served_when_they_are_back(tmp_path):
    async def story(weft):
        first = asyncio.create_task(Heard.all_of(weft.submit("a loom", 40)))
        lost = weft.watch("shards_lost")
        await lost.get()
        assert weft.engine.ailment()
        await weft.hear_right(ask("another"))
        (await first).check(weft.model)
        assert not weft.engine.ailment()
    play(story, tmp_path, faults="die@decode:3")


# -- leaving


def test_who_leaves_frees_its_blocks_at_once_and_on_the_shards_with_the_next_message(tmp_path):
    async def story(weft):
        stays, leaves = weft.submit("a loom", 40), weft.submit("another", 40)
        await weft.gate.arrival()
        weft.gate.let(5)
        await weft.shards.reach(6)
        leaves.close()
        assert len(weft.core.running) == 1
        weft.gate.let(3)  # two steps under way, and the next
        await weft.shards.reach(9)
        assert len(weft.ranks[0].worker.ledger.sequences) == 1
        weft.gate.open()
        (await Heard.all_of(stays)).check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, gated=True)


def test_who_leaves_while_the_shards_are_away_is_forgotten(tmp_path):
    async def story(weft):
        stream, lost = weft.submit("a loom", 40), weft.watch("shards_lost")
        await lost.get()
        stream.close()
        await weft.engine.drained()
        await weft.check_idle()
    play(story, tmp_path, faults="die@decode:3")


def test_leaving_twice_or_after_the_end_does_no_harm(tmp_path):
    async def story(weft):
        stream = weft.submit("a loom", 5)
        (await Heard.all_of(stream)).check(weft.model)
        stream.close()
        other = weft.submit("a loom", 5)
        other.close()
        other.close()
        await weft.check_idle()
    play(story, tmp_path)


def test_who_leaves_when_its_end_is_known_but_not_told_does_no_harm(tmp_path):
    async def story(weft):
        stream = weft.submit("a loom", 3)
        complete = weft.core.complete

        def leaving(*args):
            events = complete(*args)
            asyncio.get_running_loop().call_soon(stream.close)
            return events

        weft.core.complete = leaving
        await weft.check_idle()
    play(story, tmp_path)


# -- clients that do not read

SLOW = {"slow_client_buffer": 4096, "slow_client_timeout": 60.0}


async def until_held(weft, stream):
    held = weft.watch("hold")
    await held.get()
    assert stream.size > weft.config.slow_client_buffer


def test_who_does_not_read_is_held_while_the_others_go_on(tmp_path):
    async def story(weft):
        slow = weft.submit("a loom", 90)
        await until_held(weft, slow)
        await weft.hear_right(ask("another", 40))
        await weft.settle()
        assert not len(weft.core.running)
        assert not weft.ranks[0].worker.ledger.sequences
        assert weft.engine.num_unfinished == 1
        (await Heard.all_of(slow)).check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, **SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("look_ahead", [1, 2])
@pytest.mark.parametrize("tokens_per_step", [1, 3])
def test_no_more_is_kept_than_the_limit_and_what_is_under_way(tmp_path, tokens_per_step, look_ahead):
    async def story(weft):
        slow = weft.submit("a loom", 90)
        await until_held(weft, slow)
        await weft.hear_right(ask("another", 30))
        assert slow.size <= weft.config.slow_client_buffer + 130 * tokens_per_step * (1 + look_ahead)
        (await Heard.all_of(slow)).check(weft.model)
    play(story, tmp_path, tokens_per_step=tokens_per_step, look_ahead=look_ahead, **SLOW)


def test_who_is_slow_again_and_again_gets_every_token_once(tmp_path):
    async def story(weft):
        slow = weft.submit("a loom", 120)
        heard, held = Heard(slow.request), weft.watch("hold")
        for _ in range(3):
            await held.get()
            await weft.hear_right(ask("another", 5))
            heard.take(await slow.events())
        while heard.end is None:
            heard.take(await slow.events())
        heard.check(weft.model)
        assert weft.shards.num_sent_again == 3
        await weft.check_idle()
    play(story, tmp_path, **SLOW)


def test_who_does_not_read_for_too_long_is_given_up(tmp_path):
    async def story(weft):
        slow = weft.submit("a loom", 90)
        other = asyncio.create_task(Heard.all_of(weft.submit("another", 50)))
        (await other).check(weft.model)
        await weft.engine.drained()
        heard = await Heard.all_of(slow)
        assert isinstance(heard.error, Cancelled)
        heard.check_beginning(weft.model)
        await weft.check_idle()
    play(story, tmp_path, slow_client_buffer=4096, slow_client_timeout=0.02)


def test_who_leaves_while_being_held_is_forgotten(tmp_path):
    async def story(weft):
        slow = weft.submit("a loom", 90)
        await until_held(weft, slow)
        slow.close()
        await weft.check_idle()
    play(story, tmp_path, **SLOW)


@pytest.mark.slow
def test_a_loss_while_somebody_is_held(tmp_path):
    async def story(weft):
        slow = weft.submit("a loom", 100)
        await until_held(weft, slow)
        await weft.hear_right(ask("another", 60))
        assert weft.num_replaced == 1
        (await Heard.all_of(slow)).check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, faults="die@decode:60", **SLOW)


# -- defects of our code


def test_a_mistake_in_the_core_fails_everybody_and_is_told(tmp_path):
    async def story(weft):
        streams = [weft.submit(f"{number}", 50) for number in range(3)]
        await weft.shards.reach(5)

        def plan(now):
            raise ZeroDivisionError

        weft.core.plan = plan
        for stream in streams:
            assert isinstance((await Heard.all_of(stream)).error, NotReady)
        await weft.engine.crashed()
        assert weft.engine.ailment()
        await weft.engine.drained()
        with pytest.raises(NotReady):
            weft.submit()
    play(story, tmp_path)


def test_a_mistake_in_the_text_of_one_request_fails_that_request_alone(tmp_path, monkeypatch):
    read = Delivery.read

    def clumsy(delivery, row):
        if delivery.request.prompt == tuple(b"clumsy") and len(delivery._text) == 4:
            raise ZeroDivisionError
        return read(delivery, row)

    monkeypatch.setattr(Delivery, "read", clumsy)

    async def story(weft):
        guilty, *others = await weft.hear(ask("clumsy", 20), *(ask(f"{number}", 20) for number in range(3)))
        assert isinstance(guilty.error, GenerationFailed)
        assert len(guilty.tokens) == 4
        for heard in others:
            heard.check(weft.model)
        await weft.check_idle()
    play(story, tmp_path)


def test_so_does_a_mistake_in_its_last_words(tmp_path, monkeypatch):
    finish = Delivery.finish

    def clumsy(delivery, reason):
        if delivery.request.prompt == tuple(b"clumsy"):
            raise ZeroDivisionError
        finish(delivery, reason)

    monkeypatch.setattr(Delivery, "finish", clumsy)

    async def story(weft):
        guilty, *others = await weft.hear(ask("clumsy", 5), *(ask(f"{number}", 20) for number in range(3)))
        assert isinstance(guilty.error, GenerationFailed)
        for heard in others:
            heard.check(weft.model)
        await weft.check_idle()
    play(story, tmp_path)


def test_whose_text_cannot_even_begin_is_not_served_for_nobody(tmp_path, monkeypatch):
    async def story(weft):
        with monkeypatch.context() as patch:
            patch.setattr(weft.tokenizer, "detokenizer", lambda _: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                weft.submit("clumsy", 50)
        assert not len(weft.core.sequences)
        await weft.check_idle()
    play(story, tmp_path)


# -- results and records of a request


def test_prompt_logprobs_are_told_once_though_the_shards_died_in_between(tmp_path):
    async def story(weft):
        (heard,) = await weft.hear(ask("x" * 100, 10, prompt_logprobs=True))
        assert weft.num_replaced == 1
        assert sorted(heard.prompt_logprobs) == list(range(1, 100))
        heard.check(weft.model)
    play(story, tmp_path, faults="die@prefill:3", max_batch_prefill_tokens=32)


def test_prompt_logprobs_alone_may_be_too_many_to_keep(tmp_path):
    """A chunk's logprobs exceed the client's buffer, so the sequence is held and restarted until all are delivered."""
    async def story(weft):
        (heard,) = await weft.hear(ask("x" * 400, 10, prompt_logprobs=True))
        assert sorted(heard.prompt_logprobs) == list(range(1, 400))
        heard.check(weft.model)
        assert weft.shards.num_sent_again > 0
        await weft.check_idle()
    play(story, tmp_path, max_batch_prefill_tokens=128, **SLOW)


def test_time_in_the_queue_ends_with_the_first_step(tmp_path, monkeypatch):
    async def story(weft):
        monkeypatch.setattr(engine, "now", lambda: float(weft.shards.num_steps))  # a second per step
        first, second = await weft.hear(ask("a loom", 30), ask("another", 3))
        assert waited(first.end.story) == 0.0
        assert waited(second.end.story) == 30.0
        assert second.end.story.seconds(0.0).items() >= {Cause.PREFILL: 1.0, Cause.DECODE: 2.0}.items()
    play(story, tmp_path, max_batch_size=1, look_ahead=1)


def test_an_account_is_kept_of_who_is_served_and_of_who_was(tmp_path):
    async def story(weft):
        request = ask("a loom", 5)
        stream = weft.engine.submit(request, came=engine.now() - 1.0)
        account = weft.engine.account(request.id)
        assert (account.state, account.num_prompt_tokens, account.num_generated) == ("waiting", 6, 0)
        assert account.story.began - account.came >= 1.0
        assert not weft.engine.may_use(request.id, ANYONE)
        (await Heard.all_of(stream)).check(weft.model)
        assert weft.engine.account(request.id) is account
        assert (account.state, account.num_generated) == ("over", 5)
        assert weft.engine.may_use(request.id, ANYONE)
    play(story, tmp_path)


def test_accounts_end_with_whoever_fails_or_leaves(tmp_path):
    async def story(weft):
        too_long, leaving, staying = ask("a loom", 200), ask("a loom", 20), ask("a loom", 20)
        streams = [weft.engine.submit(request) for request in (too_long, leaving, staying)]
        streams[1].close()
        assert [weft.engine.account(request.id).state for request in (too_long, leaving, staying)] == [
            "over", "over", "waiting"]
        assert isinstance((await Heard.all_of(streams[0])).error, GenerationFailed)
        (await Heard.all_of(streams[2])).check(weft.model)
    play(story, tmp_path, num_blocks=8)


# -- timeouts


def test_who_cannot_start_in_time_is_told_so_though_no_step_is_answered(tmp_path):
    async def story(weft):
        first = weft.submit("a loom", 5)
        await weft.gate.arrival()
        late = await Heard.all_of(weft.submit("another", 5, timeout=0.01))
        assert isinstance(late.error, TimedOut)
        assert not late.tokens
        weft.gate.open()
        (await Heard.all_of(first)).check(weft.model)
        await weft.check_idle()
    play(story, tmp_path, gated=True, max_batch_size=1)


def test_time_runs_out_while_there_are_no_shards(tmp_path):
    async def story(weft):
        lost = weft.watch("shards_lost")
        stream = weft.submit("a loom", 100)
        await weft.shards.reach(2)
        await weft.ranks.pop().kill()
        await lost.get()
        assert isinstance((await Heard.all_of(weft.submit("another", 5, timeout=0.01))).error, TimedOut)
        stream.close()
    play(story, tmp_path)


def test_who_runs_when_time_runs_out_ends_with_the_tokens_that_it_has(tmp_path, monkeypatch):
    async def story(weft):
        time = 0.0
        monkeypatch.setattr(engine, "now", lambda: time)
        stream = weft.submit("a loom", 20, timeout=5.0)
        await weft.gate.arrival()
        weft.gate.let(3)
        await weft.shards.reach(5)
        time = 6.0
        weft.gate.open()
        heard = await Heard.all_of(stream)
        assert heard.end.reason is FinishReason.TIMEOUT
        assert 3 <= len(heard.tokens) == heard.end.num_tokens < 20
        assert heard.end.text == heard.text
        heard.check_beginning(weft.model)
        await weft.check_idle()
    play(story, tmp_path, gated=True)


def test_what_an_answer_said_is_told_before_the_end_of_time(tmp_path):
    async def story(weft):
        told = []
        weft.engine._clients.tell, weft.core.expire = told.append, lambda now: ["expired"]
        weft.engine._events = ["said"]
        weft.engine._expire()
        assert told == [["said", "expired"]]
    play(story, tmp_path)


def test_starting_waits_for_the_shards(tmp_path):
    async def story(made):
        await made.engine.stop()
        (rank,) = made.ranks
        await rank.kill()
        made.engine = Engine(made.config, Shards(made.shards.addresses), byte_tokenizer())
        starting = asyncio.create_task(made.engine.start())
        made.ranks = made._new_ranks()
        await made.ranks[0].start()
        await starting
        await made.hear_right(ask())
    play(story, tmp_path)


@pytest.mark.slow
def test_shards_that_hang_when_the_router_starts_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.CALL_TIMEOUT", 0.3)

    async def story(weft):
        assert [why.partition(":")[0] for why in weft.broken] == ["deadline_exceeded"]
        await weft.hear_right(ask())
    play(story, tmp_path, faults="hang@reset:1")


@pytest.mark.slow
def test_so_are_those_that_never_become_warm(tmp_path, monkeypatch):
    monkeypatch.setattr("router.shards.handshake.WARMUP_TIMEOUT", 0.3)

    async def story(weft):
        assert [why.partition(":")[0] for why in weft.broken] == ["deadline_exceeded"]
        await weft.hear_right(ask())
    play(story, tmp_path, faults="hang@warmup:1")


def test_a_step_that_does_not_end_ails_the_server_until_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "LEAST_BOUND", 0.0)
    monkeypatch.setattr(health, "FACTOR", 0.0)

    async def story(weft):
        assert not weft.engine.ailment()
        hearing = asyncio.create_task(Heard.all_of(weft.submit("a loom", 5)))
        await weft.gate.arrival()
        assert "no step has ended" in weft.engine.ailment()
        weft.gate.open()
        (await hearing).check(weft.model)
        await weft.settle()
        assert not weft.engine.ailment()
    play(story, tmp_path, gated=True)


@pytest.mark.parametrize(("faults", "ranks", "why"), [
    ("refuse@warmup:1", 1, "told to refuse"), ("step_error@reset:1", 2, "told to fail")])
def test_shards_that_cannot_be_used_are_told_and_nothing_is_left_behind(tmp_path, faults, ranks, why):
    with pytest.raises(ShardsLost, match=why):
        play(pytest.fail, tmp_path, faults=faults, ranks=ranks)


class Strange(SimulatedWorker):
    """Simulated worker that serves a different model on every rank."""

    def info(self):
        answer = super().info()
        answer.model = f"model of rank {self._rank}"
        return answer


def test_ranks_of_different_models_are_not_served(tmp_path):
    with pytest.raises(ShardsLost, match="rank 1 serves another model than rank 0"):
        play(pytest.fail, tmp_path, ranks=2, worker=Strange)


def test_whole_houses_do_not_meet(tmp_path):
    """Two complete servers run in one process, since no module holds state."""
    async def story(one):
        (tmp_path / "other").mkdir()
        async with weft(tmp_path / "other", seed=1) as other:
            await asyncio.gather(one.hear_right(ask()), other.hear_right(ask()))
    play(story, tmp_path)


# -- adapters that no request needs


def adapter(weft, source="a", takes=100):
    return weft.engine.supply.resources.of("adapter", source, takes)


def test_an_adapter_is_loaded_for_nobody_and_leaves_when_it_is_dropped(tmp_path):
    async def story(weft):
        resource = adapter(weft)
        assert [await weft.engine.supply.load(resource) for _ in range(2)] == ["", ""]
        assert weft.engine.supply.adapters == {resource: Standing("here", 0)}
        assert weft.engine.supply.resources.num_loads("a") == weft.calls["Load"] == 1
        removed = weft.watch("removed")
        weft.engine.supply.unload(resource)
        assert await removed.get() == resource
        assert weft.engine.supply.adapters == {}
        samples = read(weft.engine.metrics())
        assert (samples['weft_adapter_loads{outcome="ok"}'], samples["weft_adapter_unloads"]) == (1, 1)
        assert samples["weft_adapter_load_seconds_count"] == 1
    play(story, tmp_path)


def test_why_an_adapter_cannot_be_loaded_is_returned(tmp_path):
    async def story(weft):
        assert "takes no KIND_ADAPTER" in await weft.engine.supply.load(adapter(weft))
        assert "takes 5,000 bytes" in await weft.engine.supply.load(adapter(weft, "large", 5000))
        assert weft.engine.supply.resources.num_loads("a") == 0
    play(story, tmp_path, adapters=False, adapter_bytes=1000)


@pytest.mark.slow
def test_a_loss_of_the_shards_only_makes_loading_take_longer(tmp_path):
    async def story(weft):
        assert await weft.engine.supply.load(adapter(weft)) == ""
        assert weft.engine.supply.resources.num_loads("a") == 1
    play(story, tmp_path, faults="die@load:1")


def test_what_could_not_be_loaded_may_be_the_next_time(tmp_path):
    async def story(weft):
        assert [await weft.engine.supply.load(adapter(weft)) for _ in range(2)] == ["told to refuse", ""]
    play(story, tmp_path, faults="refuse@load:1")


def test_an_adapter_that_fits_no_more_after_a_loss_is_told(tmp_path):
    async def story(weft):
        await weft.ranks.pop().kill()
        loading = asyncio.create_task(weft.engine.supply.load(adapter(weft, takes=900)))
        await asyncio.sleep(0)
        weft._configs = [replace(config, simulated=replace(config.simulated, adapter_bytes=500))
                         for config in weft._configs]
        weft.ranks = weft._new_ranks()
        for rank in weft.ranks:
            await rank.start()
        assert "there are 500 for adapters" in await loading
        assert weft.core._queue.aside == {}
    play(story, tmp_path, adapter_bytes=1000)


def test_stopping_tells_whoever_waits_for_an_adapter(tmp_path):
    async def story(weft):
        await weft.ranks.pop().kill()
        loading = asyncio.create_task(weft.engine.supply.load(adapter(weft)))
        await asyncio.sleep(0)
        await weft.engine.stop()
        with pytest.raises(NotReady):
            await loading
        with pytest.raises(NotReady):
            await weft.engine.supply.load(adapter(weft))
    play(story, tmp_path)
