from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from support.fake_study import SCOPE, House

from benchmarks.study.experiments import TRIES, Failed
from benchmarks.study.plan import Plan, Turn
from benchmarks.study.records import Raw
from benchmarks.study.shapes import simulated


def plan_of(house: House, folder: Path) -> Plan:
    empty = Plan(simulated(1.0), SCOPE)
    return replace(empty, pace=house.experiments(folder).pace(empty))


def test_the_pace_is_what_requests_take_alone(tmp_path: Path) -> None:
    pace = plan_of(House(), tmp_path).pace
    assert dict(pace.short)[100] == pytest.approx(1.0)
    assert dict(pace.long)[64] == pytest.approx(0.64)


def test_how_fast_it_is_without_a_cache_is_asked_only_for_the_studys_mode(tmp_path: Path) -> None:
    """Measuring it on a real model takes long."""
    house = House()
    pace = house.experiments(tmp_path).pace(Plan(simulated(1.0), SCOPE), ["sweep", "users"])
    assert [settings["batching"] for settings in house.servers] == ["none"]
    assert (bool(pace.long), pace.compat) == (True, ())


def test_what_is_there_is_not_measured_again_and_needs_no_server(tmp_path: Path) -> None:
    first = House()
    plan = plan_of(first, tmp_path)
    first.experiments(tmp_path).part(plan, "compat")
    again = House()
    again.experiments(tmp_path).part(plan_of(again, tmp_path), "compat")
    assert (len(first.servers), len(first.asked)) == (9, 10)
    assert (again.servers, again.asked) == ([], [])


def test_an_interrupted_study_keeps_what_it_has(tmp_path: Path) -> None:
    house = House()
    plan = plan_of(house, tmp_path)
    turns = list(plan.turns("compat"))
    for turn in turns[:2]:
        list(house.experiments(tmp_path).take(plan, turn))
    again = House()
    again.experiments(tmp_path).part(plan_of(again, tmp_path), "compat")
    assert len(again.servers) == len(turns) - 2


def test_a_policy_that_is_full_is_asked_no_more(tmp_path: Path) -> None:
    house = House()
    plan = plan_of(house, tmp_path)
    turns = {turn.policy: turn for turn in plan.turns("sweep")}
    levels = {policy: [taken.run.level for taken in house.experiments(tmp_path).take(plan, turns[policy])]
              for policy in ("none", "mixed")}
    assert levels == {"none": [0.5, 1.0, 4.0, 16.0], "mixed": [0.5, 1.0, 4.0, 16.0]}
    longer = replace(plan, scope=replace(SCOPE, levels=(4.0, 8.0, 16.0)))
    turn = next(turn for turn in longer.turns("sweep") if turn.policy == "none")
    assert [taken.run.level for taken in House().experiments(tmp_path / "longer").take(longer, turn)] == [4.0, 8.0]


def test_the_server_tells_its_own_figures_in_the_studys_mode(tmp_path: Path) -> None:
    house = House()
    plan = plan_of(house, tmp_path)
    [taken] = house.experiments(tmp_path).take(plan, next(plan.turns("compat")))
    assert taken.stats == {"throughput": 1.0}
    assert house.servers[-1]["recompute"]
    assert Raw(tmp_path).all()[0].stats == {"throughput": 1.0}


def test_a_run_in_which_everything_failed_is_no_result(tmp_path: Path) -> None:
    house = House()
    plan = plan_of(house, tmp_path)

    def fail(*arguments: object) -> list[object]:
        records = house.ask(*arguments)  # type: ignore[arg-type]
        return [replace(record, error="503: shards are gone") for record in records]

    turn = next(plan.turns("compat"))
    with pytest.raises(Failed, match="503: shards are gone"):
        list(replace(house.experiments(tmp_path), asked=fail).take(plan, turn))
    assert not Raw(tmp_path).path(turn.runs[0]).exists()


def test_a_run_that_was_disturbed_is_measured_again_but_not_where_the_server_counts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    plan = plan_of(house, tmp_path)
    seconds = count(0, 100)
    monkeypatch.setattr("benchmarks.harness.steal_time.stolen_seconds", lambda: float(next(seconds)))  # too much
    for part, times in (("users", TRIES), ("compat", 1)):
        turn, before = next(plan.turns(part)), len(house.asked)
        taken = next(replace(house.experiments(tmp_path), stolen=0.05).take(plan, turn))
        assert len(house.asked) - before == times
        assert taken.made["stolen"] > 1


def test_a_turn_without_runs_needs_nothing(tmp_path: Path) -> None:
    house = House()
    assert list(house.experiments(tmp_path).take(plan_of(house, tmp_path), Turn("none", ()))) == []
