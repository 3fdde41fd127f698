"""Tests of benchmarks/bench/__main__.py: the program as users call it, against a simulated shard."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.fake_bench_results import answer, result, run

from benchmarks.bench import __main__ as program
from benchmarks.bench.load.client import Target
from benchmarks.bench.load.dialects import DIALECTS
from benchmarks.bench.load.record import Ask, Record
from benchmarks.bench.settings import read_settings
from benchmarks.harness.processes import HOST, SHARD, serving

Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server in a folder of its own, since /stats writes files there."""
    shard, folder = {"simulated": SHARD | {"seconds_per_step": 0.001}}, tmp_path_factory.mktemp("server")
    with serving(2, shard=shard, settings={"dialect": "batching"}, folder=folder) as server:
        yield f"http://{HOST}:{server.port}"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
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
def test_every_dialect_is_measured_and_kept(bench: Bench, url: str, dialect: str, tmp_path: Path) -> None:
    paths = {kind: tmp_path / kind for kind in ("json", "csv", "html")}
    code, out, _ = bench(
        "--url", url, "--dialect", dialect, "--concurrency", "4", "--requests", "12", "--prompt-tokens", "12",
        "--output-tokens", "7", *(f"--{kind}={path}" for kind, path in paths.items()))
    assert (code, "end to end p50, ms" in out, "the bench itself, % of a core" in out) == (0, True, True)
    [result] = json.loads(paths["json"].read_text())["results"]
    assert {(record["num_tokens"], record["error"]) for record in result["records"]} == {(7, "")}
    assert ("by the server's own books" in out) == ("total-tokens-handled" in result["stats"]) == (
        dialect == "batching")
    assert len(paths["csv"].read_text().splitlines()) == 13
    assert "<svg" in paths["html"].read_text()


@pytest.mark.slow
def test_prompts_have_as_many_tokens_as_the_server_counts(bench: Bench, url: str, tmp_path: Path) -> None:
    path = tmp_path / "json"
    bench("--url", url, "--dialect", "openai", "--requests", "5", "--prompt-tokens", "9-80", "--output-tokens", "2",
          "--quiet", "--json", str(path))
    records = json.loads(path.read_text())["results"][0]["records"]
    assert all(record["prompt_tokens"] == record["ask"]["prompt_tokens"] for record in records)


@pytest.mark.slow
def test_two_runs_take_turns_and_are_compared(bench: Bench, url: str) -> None:
    code, out, err = bench("--url", url, "--rate", "200", "--requests", "6", "--output-tokens", "3", "--turns", "2",
                           "--versus", "--output-tokens 6")
    assert (code, err.count("sent 6")) == (0, 4)
    assert out.split("\n")[0].split() == ["A1", "B1", "A2", "B2"]
    assert "B / A" in out


@pytest.mark.slow
def test_a_time_may_be_filled_with_fewer_prompts(bench: Bench, url: str) -> None:
    code, out, _ = bench("--url", url, "--requests", "2", "--output-tokens", "2", "--seconds", "0.2", "--quiet")
    assert (code, "2 prompts came again and again" in out) == (0, True)


@pytest.mark.slow
def test_turns_that_ask_the_same_say_so(bench: Bench, url: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text("one\ntwo\n")
    out = bench("--url", url, "--requests", "2", "--prompts", str(path), "--versus", "--seed 1", "--turns", "1",
                "--quiet")
    assert "all turns asked the same prompts" in out[1]


@pytest.mark.slow
def test_a_window_in_which_nothing_was_is_said(bench: Bench, url: str) -> None:
    code, _, err = bench("--url", url, "--requests", "2", "--output-tokens", "2", "--warm-up", "60", "--quiet")
    assert (code, "within --warm-up 60" in err) == (1, True)


@pytest.mark.slow
def test_whoever_interrupts_sees_what_there_is(bench: Bench, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the second turn."""
    measure, calls = program.measure, []

    async def measured(*given: object) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        await measure(*given)
    monkeypatch.setattr(program, "measure", measured)
    code, out, _ = bench("--url", url, "--requests", "2", "--output-tokens", "2", "--versus", "--seed 3", "--quiet")
    assert (code, "tokens/s" in out, "B / A" in out) == (130, True, False)


def test_a_turn_that_was_called_off_counts_for_no_ratio_and_is_said() -> None:
    results = [run("A"), run("B"), run("A"), replace(run("B"), is_whole=False)]
    assert {ratio.turns_in_all for ratio in program.ratios(results)} == {1}
    assert program.ratios(results[2:]) == []
    settings = read_settings([])
    [note] = [note for note in program.notes(settings, settings, results) if "interrupted" in note]
    assert note.startswith("B2 ")


def test_answers_that_end_early_are_said() -> None:
    """A server that generates fewer tokens finishes sooner, which distorts a comparison."""
    short = answer(tokens=5)
    short.ask = replace(short.ask, output_tokens=9)
    assert program.notes(read_settings([]), None, [result([short, answer(number=2)])])[0].startswith(
        "A: 1 of 2 answers have fewer tokens than were asked for")


@pytest.mark.slow
def test_a_run_that_heard_nothing_is_no_success_beside_another(bench: Bench, url: str) -> None:
    code, out, err = bench("--url", url, "--requests", "2", "--output-tokens", "2", "--turns", "1", "--quiet",
                           "--versus", """--sampling '{"top_p": 7}'""")
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
def test_a_window_ends_with_the_time_unless_there_was_nothing_more_or_it_was_called_off(
        words: tuple[str, ...], is_whole: bool, end: float) -> None:
    records = [Record(Ask(0, "a", 1), 0.0, ended) for ended in (5.0, 3.0)]
    assert program.end_of(read_settings([*words]), records, is_whole=is_whole) == end


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\ngone", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngone", b""])
def test_a_server_without_books_spoils_nothing(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /stats ")
        writer.write(answer)
        writer.close()

    async def story() -> None:
        async with await asyncio.start_server(serve, HOST, 0) as server:
            address = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
            assert await program.what_it_counted(Target(address, DIALECTS["batching"])) == {}
            assert await program.what_it_counted(Target(address, DIALECTS["tgi"])) == {}
    asyncio.run(story())


@pytest.mark.slow
def test_a_key_is_not_kept(bench: Bench, url: str, tmp_path: Path) -> None:
    path = tmp_path / "json"
    bench("--url", url, "--requests", "2", "--api-key", "sk-secret", "--versus", "--api-key=sk-secret --seed 3",
          "--turns", "1", "--quiet", "--json", str(path))
    assert "sk-secret" not in path.read_text()


@pytest.mark.parametrize(("words", "code", "reason"), [
    (("--rate", "x"), 2, "--rate"), (("--goal", "fast"), 2, "--goal is such as"),
    (("--url", "127.0.0.1:1"), 1, "nobody answers at 127.0.0.1:1"),
    (("--url", "127.0.0.1:1", "--csv", "/nowhere/csv"), 1, "/nowhere/csv"),
    (("--url", "127.0.0.1:1", "--trace", "/nowhere"), 1, "/nowhere"),
    (("--url", "127.0.0.1:1", "--versus", "--output-tokens abc"), 2, "--output-tokens is 64,"),
    (("--url", "127.0.0.1:1", "--versus", "--shared-prefix 64"), 2, "--shared-prefix 64 is part of"),
    (("--url", "127.0.0.1:1", "--versus", "--tokenizer /nowhere"), 2, "--tokenizer: cannot read /nowhere")])
def test_what_is_wrong_is_one_line(bench: Bench, words: tuple[str, ...], code: int, reason: str) -> None:
    ended, out, err = bench(*words)
    assert (ended, out, err.count("\n"), reason in err) == (code, "", 1, True)


@pytest.mark.slow
def test_when_every_request_fails_it_is_said(bench: Bench, url: str) -> None:
    code, out, err = bench("--url", url, "--requests", "3", "--output-tokens", "2", "--sampling", '{"top_p": 7}',
                           "--quiet")
    assert (code, "every request failed" in err, "3 failed: " in out) == (1, True, True)
