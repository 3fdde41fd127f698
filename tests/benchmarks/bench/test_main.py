"""Tests of benchmarks/bench/__main__.py: the program as users call it, against a simulated shard."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_bench_results import make_bench_result, make_sample_result, make_streamed_record

from benchmarks.bench import __main__ as program
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.generator import Target
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.settings import parse_settings
from benchmarks.harness.processes import HOST, SIMULATED_SHARD_COSTS, run_router_and_shard

RunBench = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server in a folder of its own, since /stats writes files there."""
    shard, folder = {"simulated": SIMULATED_SHARD_COSTS
                     | {"seconds_per_step": 0.001}}, tmp_path_factory.mktemp("server")
    with run_router_and_shard(2, shard=shard, settings={"dialect": "batching"}, folder=folder) as server:
        yield f"http://{HOST}:{server.port}"


@pytest.fixture
def run_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunBench:
    """Return a function that runs the bench to its end and returns exit code, stdout and stderr."""
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["bench", *words])
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(program.main() or 0)
        return (ended.value.code, *capsys.readouterr())
    return run


@pytest.mark.slow
@pytest.mark.usefixtures("fonts")
@pytest.mark.parametrize("dialect", ["tgi", "openai", "openai-chat", "batching"])
def test_every_dialect_is_measured_and_saved(run_bench: RunBench, server_url: str, dialect: str,
                                             tmp_path: Path) -> None:
    paths = {kind: tmp_path / kind for kind in ("json", "csv", "html")}
    code, out, _ = run_bench(
        "--url", server_url, "--dialect", dialect, "--concurrency", "4", "--requests", "12", "--prompt-tokens", "12",
        "--output-tokens", "7", *(f"--{kind}={path}" for kind, path in paths.items()))
    assert (code, "end to end p50, ms" in out, "load generator, % of a core" in out) == (0, True, True)
    [result] = json.loads(paths["json"].read_text())["results"]
    assert {(record["num_tokens"], record["error"]) for record in result["records"]} == {(7, "")}
    assert ("by the server's own books" in out) == ("total-tokens-handled" in result["stats"]) == (
        dialect == "batching")
    assert len(paths["csv"].read_text().splitlines()) == 13
    assert "<svg" in paths["html"].read_text()


@pytest.mark.slow
def test_prompts_have_as_many_tokens_as_the_server_counts(run_bench: RunBench, server_url: str, tmp_path: Path) -> None:
    path = tmp_path / "json"
    run_bench("--url", server_url, "--dialect", "openai", "--requests", "5", "--prompt-tokens", "9-80",
              "--output-tokens", "2", "--quiet", "--json", str(path))
    records = json.loads(path.read_text())["results"][0]["records"]
    assert all(record["prompt_tokens"] == record["ask"]["prompt_tokens"] for record in records)


@pytest.mark.slow
def test_two_runs_take_turns_and_are_compared(run_bench: RunBench, server_url: str) -> None:
    code, out, err = run_bench("--url", server_url, "--rate", "200", "--requests", "6", "--output-tokens", "3",
                               "--turns", "2", "--versus", "--output-tokens 6")
    assert (code, err.count("sent 6")) == (0, 4)
    headlines, _, table = out.partition("\n\n")
    assert [line.partition(" tokens/s; first token ")[0].split()[0] for line in headlines.split("\n")] == [
        "A1:", "B1:", "A2:", "B2:"]
    assert table.split("\n")[0].split() == ["A1", "B1", "A2", "B2"]
    assert "B / A" in out


@pytest.mark.slow
def test_time_limit_may_repeat_few_prompts(run_bench: RunBench, server_url: str) -> None:
    code, out, _ = run_bench("--url", server_url, "--requests", "2", "--output-tokens", "2", "--seconds", "0.2",
                             "--quiet")
    assert (code, "2 prompts came again and again" in out) == (0, True)


@pytest.mark.slow
def test_turns_with_the_same_prompts_are_noted(run_bench: RunBench, server_url: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("one\ntwo\n")
    out = run_bench("--url", server_url, "--requests", "2", "--prompts", str(path), "--versus", "--seed 1", "--turns",
                    "1", "--quiet")
    assert "all turns asked the same prompts" in out[1]


@pytest.mark.slow
def test_empty_window_is_reported(run_bench: RunBench, server_url: str) -> None:
    code, _, err = run_bench("--url", server_url, "--requests", "2", "--output-tokens", "2", "--warm-up", "60",
                             "--quiet")
    assert (code, "within --warm-up 60" in err) == (1, True)


@pytest.mark.slow
def test_interrupted_bench_shows_finished_turns(run_bench: RunBench, server_url: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the second turn."""
    measure, calls = program.measure_run, []

    async def interrupt_second_measurement(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        await measure(*arguments)
    monkeypatch.setattr(program, "measure_run", interrupt_second_measurement)
    code, out, _ = run_bench("--url", server_url, "--requests", "2", "--output-tokens", "2", "--versus", "--seed 3",
                             "--quiet")
    assert (code, "tokens/s" in out, "B / A" in out) == (130, True, False)


def test_interrupted_turn_gives_no_ratio_and_is_noted() -> None:
    results = [make_sample_result("A"), make_sample_result("B"), make_sample_result("A"),
               replace(make_sample_result("B"), is_whole=False)]
    assert {ratio.num_turns for ratio in program.compare_runs(results)} == {1}
    assert program.compare_runs(results[2:]) == []
    settings = parse_settings([])
    [note] = [note for note in program.collect_caveats(settings, settings, results) if "interrupted" in note]
    assert note.startswith("B2 ")


def test_short_answers_are_noted() -> None:
    """A server that generates fewer tokens finishes sooner, which distorts a comparison."""
    short = make_streamed_record(num_tokens=5)
    short.ask = replace(short.ask, output_tokens=9)
    assert program.collect_caveats(parse_settings([]), None,
                                   [make_bench_result([short, make_streamed_record(number=2)])])[0].startswith(
                                       "A: 1 of 2 answers have fewer tokens than were asked for")


def test_run_in_which_most_requests_fail_is_an_error() -> None:
    def make_failed_record(number: int) -> RequestRecord:
        record = make_streamed_record(number=number)
        record.error = "500"
        return record
    whole, half = make_bench_result([make_streamed_record()]), make_bench_result(
        [make_streamed_record(), make_failed_record(1)])
    program.raise_if_most_failed([whole, half])
    mostly_failed = make_bench_result([make_streamed_record(), make_failed_record(1), make_failed_record(2)])
    with pytest.raises(program.BenchFailed, match=r"^most requests of A2 failed$"):
        program.raise_if_most_failed([whole, mostly_failed])


@pytest.mark.slow
def test_run_with_only_failures_is_an_error_beside_another(run_bench: RunBench, server_url: str) -> None:
    code, out, err = run_bench("--url", server_url, "--requests", "2", "--output-tokens", "2", "--turns", "1",
                               "--quiet", "--versus", """--sampling '{"top_p": 7}'""")
    assert (code, "every request of B failed" in err, "B: 2 failed" in out) == (1, True, True)


@pytest.mark.parametrize(("words", "is_whole", "end"), [
    ((), True, 5.0), (("--seconds", "60"), True, 60.0), (("--seconds", "60"), False, 5.0),
    (("--seconds", "60", "--rate", "1"), True, 60.0),
    (("--seconds", "60", "--rate", "1", "--requests", "9"), True, 5.0),
    (("--seconds", "60", "--trace", "x"), True, 5.0),
    (("--seconds", "60", "--dialect", "batching"), True, 60.0),
    (("--seconds", "60", "--dialect", "batching", "--numsamples", "9"), True, 5.0),
    (("--seconds", "60", "--dialect", "batching", "--rate", "1"), True, 60.0),
    (("--seconds", "60", "--dialect", "batching", "--concurrency", "4"), True, 60.0)])
def test_window_ends_at_the_time_limit_unless_the_run_ended_earlier(
        words: tuple[str, ...], is_whole: bool, end: float) -> None:
    records = [RequestRecord(PlannedRequest(0, "a", 1), 0.0, ended) for ended in (5.0, 3.0)]
    assert program.compute_window_end(parse_settings([*words]), records, is_complete=is_whole) == end


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngone", b""])
def test_missing_server_stats_are_ignored(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /stats ")
        writer.write(answer)
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(serve, HOST, 0) as server:
            address = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
            assert await program.fetch_server_stats(Target(address, DIALECTS["batching"])) == {}
            assert await program.fetch_server_stats(Target(address, DIALECTS["tgi"])) == {}
    asyncio.run(scenario())


@pytest.mark.slow
def test_api_key_is_not_saved(run_bench: RunBench, server_url: str, tmp_path: Path) -> None:
    path = tmp_path / "json"
    run_bench("--url", server_url, "--requests", "2", "--api-key", "sk-secret", "--versus",
              "--api-key=sk-secret --seed 3", "--turns", "1", "--quiet", "--json", str(path))
    assert "sk-secret" not in path.read_text()


@pytest.mark.parametrize(("words", "code", "reason"), [
    (("--rate", "x"), 2, "--rate"), (("--goal", "fast"), 2, "--goal is such as"),
    (("--url", "127.0.0.1:1"), 1, "nobody answers at 127.0.0.1:1"),
    (("--url", "127.0.0.1:1", "--csv", "/nowhere/csv"), 1, "/nowhere/csv"),
    (("--url", "127.0.0.1:1", "--trace", "/nowhere"), 1, "/nowhere"),
    (("--url", "127.0.0.1:1", "--versus", "--output-tokens abc"), 2, "--output-tokens is 64,"),
    (("--url", "127.0.0.1:1", "--versus", "--shared-prefix 64"), 2, "--shared-prefix 64 is part of"),
    (("--url", "127.0.0.1:1", "--versus", "--tokenizer /nowhere"), 2, "--tokenizer: cannot read /nowhere")])
def test_invalid_arguments_are_a_one_line_error(run_bench: RunBench, words: tuple[str, ...], code: int,
                                                reason: str) -> None:
    ended, out, err = run_bench(*words)
    assert (ended, out, err.count("\n"), reason in err) == (code, "", 1, True)


@pytest.mark.slow
def test_failure_of_every_request_is_reported(run_bench: RunBench, server_url: str) -> None:
    code, out, err = run_bench("--url", server_url, "--requests", "3", "--output-tokens", "2", "--sampling",
                               '{"top_p": 7}', "--quiet")
    assert (code, "every request failed" in err, "3 failed: " in out) == (1, True, True)
