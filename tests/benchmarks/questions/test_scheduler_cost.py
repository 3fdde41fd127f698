"""Tests of the benchmark of recording and the prefix cache: all cores do the same work."""

from benchmarks.questions.scheduler_cost import NUM_BLOCKS, Core, Settings, measure, model
from router.recording.recorder import Recorder
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import Policy

TINY = Settings(streams=3, steps=20, turns=2, waiting=5)


def test_all_cores_do_the_same_work():
    facts = model(NUM_BLOCKS)
    plain, cached = (Scheduler(Policy(look_ahead=1), facts) for _ in range(2))
    recorded = Recorder(Policy(look_ahead=1), facts, 300.0, 0.0)
    for core in (plain, recorded, cached):
        Core(core, facts, 3, shares=core is cached).microseconds(50)
    assert plain.num_unfinished == recorded.num_unfinished == cached.num_unfinished == 3
    # Each step records a plan, two empty plans and an answer; add three requests and the event of ready shards.
    assert len(recorded.segments()[0].notes) == 50 * 4 + 3 + 1


def test_what_it_says():
    result = measure(TINY)
    assert result.recording_us_per_token != result.caching_us_per_token
    assert (result.streams, result.snapshot_waiting) == (3, 5)
    assert result.snapshot_ms > 0.0
