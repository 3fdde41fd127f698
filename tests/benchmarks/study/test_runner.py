from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from support.fake_study import SMALL_SCOPE, FakeStudyServers

from benchmarks.study.model_settings import make_simulated_model
from benchmarks.study.plan import PolicyRuns, StudyPlan
from benchmarks.study.run_record_store import RunRecordStore
from benchmarks.study.runner import MAX_ATTEMPTS, AllRequestsFailed


def make_plan(servers: FakeStudyServers, folder: Path) -> StudyPlan:
    plan_without_speed = StudyPlan(make_simulated_model(1.0), SMALL_SCOPE)
    study_runner = servers.make_study_runner(folder)
    return replace(plan_without_speed, server_speed=study_runner.measure_server_speed(plan_without_speed))


def test_speed_is_measured_with_single_requests(tmp_path: Path) -> None:
    server_speed = make_plan(FakeStudyServers(), tmp_path).server_speed
    assert dict(server_speed.short_prompt_latencies)[100] == pytest.approx(1.0)
    assert dict(server_speed.long_prompt_latencies)[64] == pytest.approx(0.64)


def test_uncached_speed_is_measured_only_for_the_compat_part(tmp_path: Path) -> None:
    """Measuring it on a real model takes long."""
    servers = FakeStudyServers()
    server_speed = servers.make_study_runner(tmp_path).measure_server_speed(
                         StudyPlan(make_simulated_model(1.0), SMALL_SCOPE), ["sweep", "users"])
    assert [settings["batching"] for settings in servers.settings_of_servers] == ["none"]
    assert (bool(server_speed.long_prompt_latencies), server_speed.compat_latencies) == (True, ())


def test_existing_results_are_not_measured_again(tmp_path: Path) -> None:
    first = FakeStudyServers()
    plan = make_plan(first, tmp_path)
    first.make_study_runner(tmp_path).measure_part(plan, "compat")
    new_servers = FakeStudyServers()
    new_servers.make_study_runner(tmp_path).measure_part(make_plan(new_servers, tmp_path), "compat")
    assert (len(first.settings_of_servers), len(first.request_counts)) == (9, 10)
    assert (new_servers.settings_of_servers, new_servers.request_counts) == ([], [])


def test_interrupted_study_resumes(tmp_path: Path) -> None:
    servers = FakeStudyServers()
    plan = make_plan(servers, tmp_path)
    turns = list(plan.iter_policy_runs("compat"))
    for turn in turns[:2]:
        list(servers.make_study_runner(tmp_path).iter_measured_runs(plan, turn))
    new_servers = FakeStudyServers()
    new_servers.make_study_runner(tmp_path).measure_part(make_plan(new_servers, tmp_path), "compat")
    assert len(new_servers.settings_of_servers) == len(turns) - 2


def test_saturated_policy_gets_no_further_levels(tmp_path: Path) -> None:
    servers = FakeStudyServers()
    plan = make_plan(servers, tmp_path)
    turns = {turn.policy: turn for turn in plan.iter_policy_runs("sweep")}
    levels = {policy: [run_records.run.level
                       for run_records in servers.make_study_runner(tmp_path).iter_measured_runs(plan, turns[policy])]
              for policy in ("none", "mixed")}
    assert levels == {"none": [0.5, 1.0, 4.0, 16.0], "mixed": [0.5, 1.0, 4.0, 16.0]}
    longer_plan = replace(plan, scope=replace(SMALL_SCOPE, levels=(4.0, 8.0, 16.0)))
    turn = next(turn for turn in longer_plan.iter_policy_runs("sweep") if turn.policy == "none")
    assert ([run_records.run.level for run_records in FakeStudyServers().make_study_runner(
        tmp_path / "longer").iter_measured_runs(longer_plan, turn)] == [4.0, 8.0])


def test_compat_runs_keep_the_server_stats(tmp_path: Path) -> None:
    servers = FakeStudyServers()
    plan = make_plan(servers, tmp_path)
    [run_records] = servers.make_study_runner(tmp_path).iter_measured_runs(plan, next(plan.iter_policy_runs("compat")))
    assert run_records.server_stats == {"throughput": 1.0}
    assert servers.settings_of_servers[-1]["recompute"]
    assert RunRecordStore(tmp_path).read_all()[0].server_stats == {"throughput": 1.0}


def test_run_with_only_failures_is_not_saved(tmp_path: Path) -> None:
    servers = FakeStudyServers()
    plan = make_plan(servers, tmp_path)

    def send_failing_requests(*arguments: object) -> list[object]:
        records = servers.send_requests(*arguments)  # type: ignore[arg-type]
        return [replace(record, error="503: shards are gone") for record in records]

    turn = next(plan.iter_policy_runs("compat"))
    with pytest.raises(AllRequestsFailed, match="503: shards are gone"):
        list(replace(servers.make_study_runner(tmp_path),
                     send_requests=send_failing_requests).iter_measured_runs(plan, turn))
    assert not RunRecordStore(tmp_path).get_path(turn.runs[0]).exists()


def test_disturbed_run_is_repeated_unless_the_server_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = FakeStudyServers()
    plan = make_plan(servers, tmp_path)
    seconds = count(0, 100)
    read_steal_seconds = "benchmarks.harness.cpu_steal_retry.read_steal_seconds"
    monkeypatch.setattr(read_steal_seconds, lambda: float(next(seconds)))  # too much is stolen
    for part, times in (("users", MAX_ATTEMPTS), ("compat", 1)):
        turn, num_before = next(plan.iter_policy_runs(part)), len(servers.request_counts)
        run_records = next(replace(servers.make_study_runner(tmp_path),
                                   max_steal_share=0.05).iter_measured_runs(plan, turn))
        assert len(servers.request_counts) - num_before == times
        assert run_records.metadata["stolen"] > 1


def test_policy_without_runs_needs_no_server(tmp_path: Path) -> None:
    servers = FakeStudyServers()
    assert list(servers.make_study_runner(tmp_path).iter_measured_runs(make_plan(servers, tmp_path),
                                                                       PolicyRuns("none", ()))) == []
