"""Tests of the benchmark of recording and the prefix cache: all cores do the same work."""

from benchmarks.experiments.recording_and_caching_cost import (
    NUM_BLOCKS,
    BusyScheduler,
    RecordingCostSettings,
    make_model_info,
    measure_recording_and_caching_costs,
)
from router.recording.recording_scheduler import RecordingScheduler
from router.scheduler.scheduler import Scheduler
from router.scheduler.settings import SchedulerSettings

TINY_SETTINGS = RecordingCostSettings(streams=3, steps=20, turns=2, waiting=5)


def test_all_scheduler_variants_do_the_same_work():
    facts = make_model_info(NUM_BLOCKS)
    plain, cached = (Scheduler(SchedulerSettings(look_ahead=1), facts) for _ in range(2))
    recorded = RecordingScheduler(SchedulerSettings(look_ahead=1), facts, 300.0, 0.0)
    for core in (plain, recorded, cached):
        BusyScheduler(core, facts, 3, has_block_hashes=core is cached).measure_us_per_step(50)
    assert plain.num_unfinished == recorded.num_unfinished == cached.num_unfinished == 3
    # Each step records a plan, two empty plans and an answer; add three requests and the event of ready shards.
    assert len(recorded.copy_segments()[0].entries) == 50 * 4 + 3 + 1


def test_results_have_costs_and_a_snapshot_time():
    result = measure_recording_and_caching_costs(TINY_SETTINGS)
    assert result.recording_us_per_token != result.caching_us_per_token
    assert (result.streams, result.snapshot_waiting) == (3, 5)
    assert result.snapshot_ms > 0.0
