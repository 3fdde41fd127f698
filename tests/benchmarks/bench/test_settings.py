"""Tests of benchmarks/bench/settings.py."""

import pytest
from cyclopts import CycloptsError

from benchmarks.bench.report.summary import LatencyGoal
from benchmarks.bench.settings import BenchSettings, parse_goal, parse_settings, parse_versus_settings


def read_flags(flags: str) -> BenchSettings:
    return parse_settings(flags.split())


def test_defaults_are_eight_clients_and_a_hundred_requests() -> None:
    settings = parse_settings([])
    assert settings == BenchSettings()
    assert (settings.num_clients, settings.workload.requests) == (8, 100)


def test_rate_makes_an_open_loop() -> None:
    settings = read_flags("--rate 4 --seconds 10")
    assert settings.num_clients is None
    assert (settings.workload.rate, settings.workload.seconds, settings.workload.is_open_loop) == (4.0, 10.0, True)


def test_study_client_flags_are_understood() -> None:
    workload = read_flags(
        "--dialect batching --numsamples 7 --wait 2 --selection descend --numtokens_range 5 9").workload
    assert (workload.requests, workload.wait, workload.longest_first, workload.output_tokens,
            workload.has_numbered_prompts) == (7, 2.0, True, "5,9", True)


def test_study_dialect_has_its_own_defaults() -> None:
    workload = parse_settings(["--dialect", "batching"]).workload
    assert (workload.requests, workload.wait, workload.output_tokens) == (100, 1.0, "1,25,100")


def test_study_prompt_is_one_request() -> None:
    workload = parse_settings(["--dialect", "batching", "--prompt", "Hello", "--numtokens", "9"]).workload
    assert (workload.requests, workload.only_prompt, workload.output_tokens) == (1, "Hello", "9")


@pytest.mark.parametrize("flag", [
    "--concurrency 4", "--rate 2", "--trace x", "--requests 5", "--numsamples 3", "--seconds 2", "--wait 0",
    "--selection descend", "--numtokens_range 5", "--prompts x", "--prompt-tokens 9", "--output-tokens 9"])
def test_flags_useless_for_one_request_are_rejected(flag: str) -> None:
    with pytest.raises(ValueError, match=f"make one request, of which {flag.partition(' ')[0]} says nothing"):
        read_flags(f"--dialect batching --prompt Hello --numtokens 9 {flag}")


@pytest.mark.parametrize("flags", [
    "--concurrency 4 --rate 2", "--rate 2 --trace x", "--seconds 2 --warm-up 2", "--prompt a", "--numsamples 4",
    "--dialect batching --prompt a", "--sampling [1]", "--sampling {", "--goal ttft", "--goal speed=1s",
    "--goal ttft=-1s", "--goal ttft=500", "--requests 0", "--rate 4 --seconds inf", "--rate 4 --even --burst 2",
    "--wait 1", "--numtokens_range 5", "--selection descend", "--dialect batching --wait 1 --rate 2",
    "--dialect batching --adapters a", "--dialect batching --goal ttft=1s", "--url http://a:b@c",
    "--dialect smtp", "--unknown 3", "--speed 0", "--rate 0", "--rate inf", "--dialect batching --wait inf",
    "--url http://a:b", "--url http://a:0", "--url http://a:65536"])
def test_invalid_flags_are_rejected(flags: str) -> None:
    with pytest.raises((ValueError, CycloptsError)):
        read_flags(flags)


@pytest.mark.parametrize(("flags", "reason"), [
    ("--burst 10", "--burst only applies with --rate, which is not given"), ("--even", "--rate"),
    ("--speed 2", "--trace"), ("--prefixes 3", "--shared-prefix"), ("--prompts x --prompt-tokens 9", "--prompts and"),
    ("--turns 2", "--versus"), ("--prompts x --tokenizer y", "--prompts and"), ("--model a", "tgi has no field"),
    ("--dialect batching --shared-prefix 9", "--prompt-tokens"),
    ("--prompts x --shared-prefix 9", "--prompts and"), ("--trace x --prompt-tokens 9", "--trace and --prompt-tokens"),
    ("--trace x --output-tokens 9", "--trace and"), ("--dialect batching --numsamples 3 --requests 3", "--numsamples"),
    ("--dialect batching --numtokens_range 3 --output-tokens 3", "--numtokens_range and --output-tokens"),
    ("--dialect batching --model a", "--model: a request of --dialect batching has no"),
    ("--dialect batching --stop-at-end", "--stop-at-end: ")])
def test_flag_without_effect_is_rejected(flags: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_flags(flags)


def test_invalid_port_is_reported_for_the_url() -> None:
    with pytest.raises(ValueError, match=r"^--url: a port is a number from 1 to 65535, got 'a:b'$"):
        read_flags("--url http://a:b")


def test_study_client_sends_for_the_given_time() -> None:
    workload = read_flags("--dialect batching --seconds 600").workload
    assert (workload.seconds, workload.can_run_out) == (600.0, False)
    # otherwise it would never end
    assert read_flags("--dialect batching --seconds 600 --wait 0").workload.requests == 100


def test_goal_is_read_in_seconds() -> None:
    assert parse_goal("ttft=500ms, itl=0.05s,e2e=10s") == LatencyGoal(0.5, 0.05, 10.0)


def test_versus_run_differs_only_by_its_flags() -> None:
    words = ["--url", "http://a", "--rate", "4", "--versus", "--url http://b --seed=3", "--turns", "5", "--seed", "1"]
    first = parse_settings(words)
    second = parse_versus_settings(words, first)
    assert (second.url, second.rate, second.seed, second.versus) == ("http://b", 4.0, 3, "")


def read_versus_settings(first: str, second: str) -> BenchSettings:
    words = [*first.split(), "--versus", second]
    return parse_versus_settings(words, parse_settings(words))


def test_versus_run_may_have_another_arrival_pattern() -> None:
    """Compare an open loop with a closed one, and the reverse."""
    second = read_versus_settings("--rate 4 --burst 2 --seconds 9", "--concurrency 8")
    assert (second.num_clients, second.rate, second.seconds) == (8, None, 9.0)
    assert read_versus_settings("--concurrency 8", "--rate 4").num_clients is None
    assert read_versus_settings("--trace x --speed 2", "--rate=4").trace == ""


def test_versus_flags_replace_conflicting_ones() -> None:
    assert read_versus_settings("--prompts x", "--prompt-tokens 9").prompts == ""
    assert read_versus_settings("--dialect batching --numsamples 5", "--requests 9").numsamples is None


def test_inherited_flags_may_have_no_effect_in_versus() -> None:
    """A second run without a shared prefix shows the benefit of a prefix cache."""
    second = read_versus_settings("--shared-prefix 500 --prefixes 4 --prompt-tokens 600", "--shared-prefix 0")
    assert (second.shared_prefix, second.prompt_tokens) == (0, "600")
    assert read_versus_settings("--dialect openai --model a", "--dialect tgi").model == "a"
    with pytest.raises(ValueError, match="--burst only applies with --rate"):
        read_versus_settings("--concurrency 8", "--burst 3")


def test_invalid_versus_flags_are_reported() -> None:
    words = ["--versus", "--rate x"]
    with pytest.raises(ValueError, match=r"--versus '--rate x': "):
        parse_versus_settings(words, parse_settings(words))


def test_unclosed_quote_in_versus_is_reported() -> None:
    words = ["--versus", "--api-key 'secret"]
    with pytest.raises(ValueError, match=r"^--versus holds .*: No closing quotation$"):
        parse_versus_settings(words, parse_settings(words))


@pytest.mark.parametrize("file_format", ["json", "csv", "html"])
def test_output_file_cannot_be_named_in_versus(file_format: str) -> None:
    """A second name used to produce an empty file."""
    words = [f"--{file_format}", "a", "--versus", f"--{file_format} b"]
    with pytest.raises(ValueError, match=f"give --{file_format} outside of --versus"):
        parse_versus_settings(words, parse_settings(words))


def test_zero_wait_is_an_open_loop() -> None:
    assert read_flags("--dialect batching --wait 0").num_clients is None


def test_given_flags_precede_study_defaults() -> None:
    settings = read_flags("--dialect batching --output-tokens 64 --prompt-tokens 9")
    assert (settings.workload.output_tokens, settings.workload.prompt_tokens,
            settings.workload.has_numbered_prompts) == ("64", "9", False)
    assert settings.base_url == "http://127.0.0.1:8500"
