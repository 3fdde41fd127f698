"""Tests of benchmarks/bench/settings.py."""

import pytest
from cyclopts import CycloptsError

from benchmarks.bench.settings import Settings, other, read_goal, read_settings
from benchmarks.bench.summary import Goal


def read(flags: str) -> Settings:
    return read_settings(flags.split())


def test_without_flags_eight_clients_ask_a_hundred_times() -> None:
    settings = read_settings([])
    assert settings == Settings()
    assert (settings.clients, settings.workload.requests) == (8, 100)


def test_a_rate_makes_an_open_loop() -> None:
    settings = read("--rate 4 --seconds 10")
    assert settings.clients is None
    assert (settings.workload.rate, settings.workload.seconds, settings.workload.is_open) == (4.0, 10.0, True)


def test_the_studys_client_is_known_by_its_flags() -> None:
    workload = read("--dialect batching --numsamples 7 --wait 2 --selection descend --numtokens_range 5 9").workload
    assert (workload.requests, workload.wait, workload.descend, workload.output_tokens, workload.numbered) == (
        7, 2.0, True, "5,9", True)


def test_the_study_has_defaults_of_its_own() -> None:
    workload = read_settings(["--dialect", "batching"]).workload
    assert (workload.requests, workload.wait, workload.output_tokens) == (100, 1.0, "1,25,100")


def test_one_prompt_of_the_study_is_one_request() -> None:
    workload = read_settings(["--dialect", "batching", "--prompt", "Hello", "--numtokens", "9"]).workload
    assert (workload.requests, workload.only, workload.output_tokens) == (1, "Hello", "9")


@pytest.mark.parametrize("flags", [
    "--concurrency 4 --rate 2", "--rate 2 --trace x", "--seconds 2 --warm-up 2", "--prompt a", "--numsamples 4",
    "--dialect batching --prompt a", "--sampling [1]", "--sampling {", "--goal ttft", "--goal speed=1s",
    "--goal ttft=-1s", "--requests 0", "--dialect smtp", "--unknown 3", "--speed 0"])
def test_what_makes_no_sense_is_refused(flags: str) -> None:
    with pytest.raises((ValueError, CycloptsError)):
        read(flags)


def test_a_goal_is_read_in_seconds() -> None:
    assert read_goal("ttft=500ms, itl=0.05s,e2e=10") == Goal(0.5, 0.05, 10.0)


def test_the_other_run_is_like_the_first_but_for_its_flags() -> None:
    words = ["--url", "http://a", "--rate", "4", "--versus", "--url http://b --seed=3", "--turns", "5", "--seed", "1"]
    first = read_settings(words)
    second = other(words, first)
    assert (second.url, second.rate, second.seed, second.versus) == ("http://b", 4.0, 3, "")


def test_what_is_wrong_with_the_other_is_said() -> None:
    words = ["--versus", "--rate x"]
    with pytest.raises(ValueError, match=r"--versus '--rate x': "):
        other(words, read_settings(words))
