"""Tests of benchmarks/bench/settings.py."""

import pytest
from cyclopts import CycloptsError

from benchmarks.bench.report.summary import Goal
from benchmarks.bench.settings import Settings, other, read_goal, read_settings


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


@pytest.mark.parametrize("flag", [
    "--concurrency 4", "--rate 2", "--trace x", "--requests 5", "--numsamples 3", "--seconds 2", "--wait 0",
    "--selection descend", "--numtokens_range 5", "--prompts x", "--prompt-tokens 9", "--output-tokens 9"])
def test_what_one_request_has_no_use_for_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match=f"make one request, of which {flag.partition(' ')[0]} says nothing"):
        read(f"--dialect batching --prompt Hello --numtokens 9 {flag}")


@pytest.mark.parametrize("flags", [
    "--concurrency 4 --rate 2", "--rate 2 --trace x", "--seconds 2 --warm-up 2", "--prompt a", "--numsamples 4",
    "--dialect batching --prompt a", "--sampling [1]", "--sampling {", "--goal ttft", "--goal speed=1s",
    "--goal ttft=-1s", "--goal ttft=500", "--requests 0", "--rate 4 --seconds inf", "--rate 4 --even --burst 2",
    "--wait 1", "--numtokens_range 5", "--selection descend", "--dialect batching --wait 1 --rate 2",
    "--dialect batching --adapters a", "--dialect batching --goal ttft=1s", "--url http://a:b@c",
    "--dialect smtp", "--unknown 3", "--speed 0", "--rate 0", "--rate inf", "--dialect batching --wait inf",
    "--url http://a:b", "--url http://a:0", "--url http://a:65536"])
def test_what_makes_no_sense_is_refused(flags: str) -> None:
    with pytest.raises((ValueError, CycloptsError)):
        read(flags)


@pytest.mark.parametrize(("flags", "reason"), [
    ("--burst 10", "--burst only applies with --rate, which is not given"), ("--even", "--rate"),
    ("--speed 2", "--trace"), ("--prefixes 3", "--shared-prefix"), ("--prompts x --prompt-tokens 9", "--prompts and"),
    ("--turns 2", "--versus"), ("--prompts x --tokenizer y", "--prompts and"), ("--model a", "tgi has no field"),
    ("--stop-at-end", "--dialect tgi has no field"), ("--dialect batching --shared-prefix 9", "--prompt-tokens"),
    ("--prompts x --shared-prefix 9", "--prompts and"), ("--trace x --prompt-tokens 9", "--trace and --prompt-tokens"),
    ("--trace x --output-tokens 9", "--trace and"), ("--dialect batching --numsamples 3 --requests 3", "--numsamples"),
    ("--dialect batching --numtokens_range 3 --output-tokens 3", "--numtokens_range and --output-tokens"),
    ("--dialect batching --model a", "--model: a request of --dialect batching has no"),
    ("--dialect batching --stop-at-end", "--stop-at-end: ")])
def test_a_flag_without_effect_is_refused_and_not_passed_over(flags: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(flags)


def test_a_port_that_is_none_is_said_to_be_in_the_url() -> None:
    with pytest.raises(ValueError, match=r"^--url: a port is a number from 1 to 65535, got 'a:b'$"):
        read("--url http://a:b")


def test_the_studys_client_sends_as_long_as_it_is_told() -> None:
    workload = read("--dialect batching --seconds 600").workload
    assert (workload.seconds, workload.is_limited) == (600.0, False)
    assert read("--dialect batching --seconds 600 --wait 0").workload.requests == 100  # otherwise it would never end


def test_a_goal_is_read_in_seconds() -> None:
    assert read_goal("ttft=500ms, itl=0.05s,e2e=10s") == Goal(0.5, 0.05, 10.0)


def test_the_other_run_is_like_the_first_but_for_its_flags() -> None:
    words = ["--url", "http://a", "--rate", "4", "--versus", "--url http://b --seed=3", "--turns", "5", "--seed", "1"]
    first = read_settings(words)
    second = other(words, first)
    assert (second.url, second.rate, second.seed, second.versus) == ("http://b", 4.0, 3, "")


def versus(first: str, second: str) -> Settings:
    words = [*first.split(), "--versus", second]
    return other(words, read_settings(words))


def test_the_other_may_come_at_other_moments_than_the_first() -> None:
    """Compare an open loop with a closed one, and the reverse."""
    second = versus("--rate 4 --burst 2 --seconds 9", "--concurrency 8")
    assert (second.clients, second.rate, second.seconds) == (8, None, 9.0)
    assert versus("--concurrency 8", "--rate 4").clients is None
    assert versus("--trace x --speed 2", "--rate=4").trace == ""


def test_the_other_replaces_what_excludes_its_own() -> None:
    assert versus("--prompts x", "--prompt-tokens 9").prompts == ""
    assert versus("--dialect batching --numsamples 5", "--requests 9").numsamples is None


def test_what_the_other_takes_over_may_have_no_effect() -> None:
    """A second run without a shared prefix shows the benefit of a prefix cache."""
    second = versus("--shared-prefix 500 --prefixes 4 --prompt-tokens 600", "--shared-prefix 0")
    assert (second.shared_prefix, second.prompt_tokens) == (0, "600")
    assert versus("--dialect openai --model a", "--dialect tgi").model == "a"
    with pytest.raises(ValueError, match="--burst only applies with --rate"):
        versus("--concurrency 8", "--burst 3")


def test_what_is_wrong_with_the_other_is_said() -> None:
    words = ["--versus", "--rate x"]
    with pytest.raises(ValueError, match=r"--versus '--rate x': "):
        other(words, read_settings(words))


def test_a_quote_that_is_not_closed_is_said_to_be_in_versus() -> None:
    words = ["--versus", "--api-key 'secret"]
    with pytest.raises(ValueError, match=r"^--versus holds .*: No closing quotation$"):
        other(words, read_settings(words))


@pytest.mark.parametrize("place", ["json", "csv", "html"])
def test_both_runs_go_into_one_file_which_is_named_outside(place: str) -> None:
    """A second name used to produce an empty file."""
    words = [f"--{place}", "a", "--versus", f"--{place} b"]
    with pytest.raises(ValueError, match=f"give --{place} outside of --versus"):
        other(words, read_settings(words))


def test_no_pause_between_requests_is_an_open_loop_too() -> None:
    assert read("--dialect batching --wait 0").clients is None


def test_what_is_given_is_not_replaced_by_the_studys() -> None:
    settings = read("--dialect batching --output-tokens 64 --prompt-tokens 9")
    assert (settings.workload.output_tokens, settings.workload.prompt_tokens, settings.workload.numbered) == (
        "64", "9", False)
    assert settings.address == "http://127.0.0.1:8500"
