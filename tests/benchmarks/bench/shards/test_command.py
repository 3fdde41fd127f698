import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError
from support.shards.listening_shards import run_simulated_shards

from benchmarks.bench.shards import command
from benchmarks.bench.shards.batch_run import SamplingSettings
from benchmarks.bench.shards.command import (
    ShardBenchResults,
    ShardBenchSettings,
    bench,
    measure_batch_sizes,
    resolve_model_folder,
)
from benchmarks.bench.shards.rank_connections import MessageRejected, ShardFailed, connect_to_ranks
from benchmarks.harness.processes import run_children
from benchmarks.harness.random_checkpoints import make_random_checkpoint

DEFAULT_SETTINGS = ShardBenchSettings()
SMALL_SETTINGS = ShardBenchSettings(batch_size=(1, 2), runs=1, warmups=0, decode_length=2)
SIMULATED_COSTS = {"seconds_per_step": 1.0, "seconds_per_row": 0.5, "seconds_per_chunk_token": 0.25,
                   "seconds_per_place": 0.125}


def parse_settings(*arguments: str) -> Any:
    app = App(result_action="return_value")
    app.default(return_settings)
    return app(arguments, exit_on_error=False, print_error=False)


def return_settings(settings: ShardBenchSettings = DEFAULT_SETTINGS) -> ShardBenchSettings:
    return settings


def get_exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        command.run_cli("weft bench --shard", bench, arguments)
    assert isinstance(end.value.code, int)
    return end.value.code


def measure_simulated_shards(folder: Path, settings: ShardBenchSettings,
                             **simulated_settings: Any) -> ShardBenchResults:
    async def scenario() -> ShardBenchResults:
        async with run_simulated_shards(folder, **simulated_settings) as addresses:
            return await measure_batch_sizes(addresses, settings)

    return asyncio.run(scenario())


# -- running shards


@pytest.fixture(scope="module", params=[1, 2])
def shard_sockets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the sockets of shard processes that report the step times of a cost model without spending them."""
    folder = tmp_path_factory.mktemp("shards")
    sockets = [f"{folder}/shard-{rank}.sock" for rank in range(request.param)]
    model = SIMULATED_COSTS | {"time_scale": 0}
    process_args = [{"socket": f"unix:{socket}", "rank": rank, "world_size": len(sockets), "simulated": model}
                    for rank, socket in enumerate(sockets)]
    with run_children(("-m", "shard.rpc.server"), process_args):
        yield sockets


@pytest.mark.slow
def test_tables_have_a_row_for_every_batch_size(shard_sockets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for socket in shard_sockets for word in ("--socket", socket)]
    command.run_cli("", bench, [*words, "-b", "1", "2", "-b", "32", "--runs", "2"])
    text = capsys.readouterr().out
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith(("| prefill", "| decode"))]
    for step, tables in (("prefill", 3), ("decode (token)", 2), ("decode (total)", 1), ("decode", 1)):
        assert [int(size) for name, size in rows if name.strip() == step] == [1, 2, 32] * tables


@pytest.mark.slow
def test_forward_seconds_match_the_cost_model(
        shard_sockets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command.run_cli("", bench, ["-m", shard_sockets[0], "-b", "3", "-s", "20", "-d", "4", "-r", "2"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    [one] = report["points"]
    assert report["shards"] == len(shard_sockets)
    assert one["prefill_forward"]["p50"] == 1 + 0.5 * 3 + 0.25 * 60 + 0.125 * 60
    assert [one["decode_forward"][name] for name in ("least", "p50", "most")] == [
        1 + 0.5 * 3 + 0.125 * 3 * length for length in (21, 22, 23)]


def test_warmup_runs_are_not_counted(tmp_path: Path) -> None:
    [one] = measure_simulated_shards(tmp_path,
                                     ShardBenchSettings(batch_size=(2,), warmups=2, runs=3, decode_length=4)).points
    assert (one.prefill.count, one.decode.count, one.decode_total.count) == (3, 9, 3)


def test_shard_with_several_tokens_per_step_gets_enough_blocks(tmp_path: Path) -> None:
    results = measure_simulated_shards(tmp_path, ShardBenchSettings(batch_size=(2,), sequence_length=16, runs=1),
                                       tokens_per_step=3)
    assert [one.decode.count for one in results.points] == [7]


def test_batch_that_does_not_fit_the_cache_is_left_out(tmp_path: Path) -> None:
    results = measure_simulated_shards(tmp_path, ShardBenchSettings(batch_size=(1, 4, 2), sequence_length=20, runs=1),
                                       num_blocks=4)
    assert [one.batch_size for one in results.points] == [1, 2]
    assert results.skipped_batch_sizes == {4: "it needs 8 blocks of the cache, which has 4"}


def test_first_reason_is_reported_if_nothing_was_measured(tmp_path: Path) -> None:
    with pytest.raises(MessageRejected,
                       match="no batch size could be measured: it needs 8 blocks of the cache, which has 3"):
        measure_simulated_shards(tmp_path, ShardBenchSettings(batch_size=(4, 5), sequence_length=20, runs=1),
                                 num_blocks=3)


def test_batch_rejected_by_a_warm_shard_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> tuple[ShardBenchResults, ShardBenchResults]:
        async with run_simulated_shards(tmp_path) as addresses:
            return await measure_batch_sizes(addresses, SMALL_SETTINGS), await measure_batch_sizes(
                addresses, ShardBenchSettings(batch_size=(3, 1), runs=1))

    first, second = asyncio.run(scenario())
    assert [one.batch_size for one in first.points] == [1, 2]
    assert [one.batch_size for one in second.points] == [1]
    assert second.skipped_batch_sizes == {3: "30 prompt tokens would run, warm-up allowed 20"}


def test_shard_is_left_in_an_empty_epoch(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with run_simulated_shards(tmp_path) as addresses, connect_to_ranks(addresses) as ranks:
            await measure_batch_sizes(addresses, SMALL_SETTINGS)
            return [info.epoch for info in await ranks.fetch_infos()]

    assert asyncio.run(scenario()) == [2]


def test_failed_step_ends_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(ShardFailed, match="failed: internal: "):
        measure_simulated_shards(tmp_path, SMALL_SETTINGS, faults="step_error@decode:1")


def test_lengths_beyond_the_model_are_rejected_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--sequence-length 10 and --decode-length 2 need 11 .* has 9"):
        measure_simulated_shards(tmp_path, SMALL_SETTINGS, max_positions=9)


# -- shards started by the benchmark


@pytest.mark.slow
def test_shards_are_started_without_a_socket(capsys: pytest.CaptureFixture[str]) -> None:
    command.run_cli("", bench, ["--num-shard", "2", "-b", "2", "-d", "2", "-r", "1", "-w", "0"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["model"], report["shards"], report["left_out"]) == ("simulated", 2, {})


@pytest.mark.slow
@pytest.mark.parametrize("num_shard", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_real_model_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str], num_shard: str) -> None:
    folder = make_random_checkpoint("tiny", tmp_path / "tiny")
    command.run_cli("", bench, ["--model", str(folder), "--num-shard", num_shard, "--threads", "1", "-b", "1", "4",
                                "-r", "2", "--do-sample", "--top-n-tokens", "2"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["batch_size"] for one in report["points"]] == [1, 4]
    assert report["shards"] == int(num_shard)
    assert (report["model"], report["dtype"], report["do_sample"],
            report["top_n_tokens"]) == (str(folder), "float32", True, 2)


@pytest.mark.slow
def test_folder_without_a_model_is_a_one_line_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert get_exit_code("--model", str(tmp_path)) == 1
    assert capfd.readouterr().err == (
        f"weft: python -m shard.rpc.server did not start: {tmp_path} holds no model: there is no config.json\n")


def test_hub_model_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script := tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/told; echo /the/folder\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert resolve_model_folder("org/name", "v2") == "/the/folder"
    assert (tmp_path / "told").read_text() == "-P -m launcher.cli download org/name --revision v2\n"


@pytest.mark.slow
def test_failed_download_reports_its_reason(
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    assert get_exit_code("--model", "org/none") == 2
    assert capfd.readouterr().err == "weft: HF_HUB_OFFLINE is set, so nothing is downloaded\n"


# -- the command line


def test_default_settings_are_those_of_text_generation_benchmark() -> None:
    settings = parse_settings()
    assert settings == DEFAULT_SETTINGS
    assert (settings.batch_size, settings.sequence_length, settings.decode_length) == ((1, 2, 4, 8, 16, 32), 10, 8)
    assert (settings.runs, settings.warmups, settings.revision) == (10, 1, "main")


def test_flags_of_text_generation_benchmark_are_accepted() -> None:
    settings = parse_settings("-t", "org/name", "--revision", "v2", "-b", "1", "-b", "4", "-s", "20", "-d", "3", "-r",
                              "5", "-w", "0", "-m", "/tmp/text-generation-server-0", "--temperature", "0.5", "--top-k",
                              "3", "--top-p", "0.9", "--typical-p", "0.8", "--repetition-penalty", "1.2",
                              "--frequency-penalty", "0.1", "--watermark", "--do-sample", "--top-n-tokens", "2")
    assert settings == ShardBenchSettings(
        model="org/name", revision="v2", batch_size=(1, 4), sequence_length=20, decode_length=3, runs=5, warmups=0,
        master_shard_uds_path="/tmp/text-generation-server-0", sampling=SamplingSettings(
            temperature=0.5, top_k=3, top_p=0.9, typical_p=0.8, repetition_penalty=1.2, frequency_penalty=0.1,
            watermark=True, do_sample=True, top_n_tokens=2))


def test_long_flags_equal_short_flags() -> None:
    assert parse_settings("--tokenizer-name", "m", "--batch-size", "1", "2", "--sequence-length", "9",
                          "--decode-length", "4", "--runs", "2", "--warmups", "3", "--master-shard-uds-path",
                          "/s-0") == parse_settings("-t", "m", "-b", "1", "2", "-s", "9", "-d", "4", "-r", "2", "-w",
                                                    "3", "-m", "/s-0")


@pytest.mark.parametrize("wrong", [
    "--batch-size=0", "--sequence-length=0", "--decode-length=1", "--runs=0", "--warmups=-1", "--num-shard=0",
    "--temperature=0", "--top-k=0", "--top-p=2", "--repetition-penalty=0", "--frequency-penalty=3"])
def test_invalid_numbers_are_rejected(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[0]):
        parse_settings(wrong)


@pytest.mark.parametrize(("words", "code", "line"), [
    (["--model", "/no/such"], 2, "there is no folder /no/such"),
    (["--dtype", "int4"], 2, "dtype must be one of auto, float32, bfloat16, float16, got int4"),
    (["--runs", "many"], 2, 'Invalid value for --runs: unable to convert "many" into int.'),
    (["--socket", "/no/such.sock"], 1, "no shard answers at unix:/no/such.sock"),
    (["-m", "/no/such-0"], 1, "no shard answers at unix:/no/such-0"),
    (["-m", "/a-0", "--socket", "/a-1"], 2,
     "--socket and --master-shard-uds-path both say where shards run: give one of them"),
])
def test_invalid_arguments_are_a_one_line_error(
        words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert get_exit_code(*words) == code
    assert capsys.readouterr().err == f"weft: {line}\n"


def test_text_generation_benchmark_needs_a_model(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["text-generation-benchmark", "-b", "1"])
    with pytest.raises(SystemExit):
        command.text_generation_benchmark()
    assert capsys.readouterr().err == "weft: a model must be named: --tokenizer-name FOLDER_OR_NAME\n"
