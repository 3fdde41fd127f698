import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App, CycloptsError
from support.listening_shards import bare_shards

from benchmarks.bench.shards import command
from benchmarks.bench.shards.batch_run import Sampling
from benchmarks.bench.shards.command import Found, Settings, bench, folder_of, measure
from benchmarks.bench.shards.ranks import Refused, ShardFailed, connected
from benchmarks.harness.checkpoints import make
from benchmarks.harness.processes import children

DEFAULT = Settings()
SMALL = Settings(batch_size=(1, 2), runs=1, warmups=0, decode_length=2)
COST = {"seconds_per_step": 1.0, "seconds_per_row": 0.5, "seconds_per_chunk_token": 0.25, "seconds_per_place": 0.125}


def parse(*words: str) -> Any:
    app = App(result_action="return_value")
    app.default(keep)
    return app(words, exit_on_error=False, print_error=False)


def keep(settings: Settings = DEFAULT) -> Settings:
    return settings


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        command.run("weft bench --shard", bench, words)
    assert isinstance(end.value.code, int)
    return end.value.code


def measured(folder: Path, settings: Settings, **model: Any) -> Found:
    async def scene() -> Found:
        async with bare_shards(folder, **model) as addresses:
            return await measure(addresses, settings)

    return asyncio.run(scene())


# -- running shards


@pytest.fixture(scope="module", params=[1, 2])
def sockets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the sockets of shard processes that report the step times of a cost model without spending them."""
    folder = tmp_path_factory.mktemp("shards")
    found = [f"{folder}/shard-{rank}.sock" for rank in range(request.param)]
    model = COST | {"time_scale": 0}
    orders = [{"socket": f"unix:{socket}", "rank": rank, "world_size": len(found), "simulated": model}
              for rank, socket in enumerate(found)]
    with children(("-m", "shard.rpc.server"), orders):
        yield found


@pytest.mark.slow
def test_tables_have_a_row_for_every_batch_size(sockets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for socket in sockets for word in ("--socket", socket)]
    command.run("", bench, [*words, "-b", "1", "2", "-b", "32", "--runs", "2"])
    text = capsys.readouterr().out
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith(("| prefill", "| decode"))]
    for step, tables in (("prefill", 3), ("decode (token)", 2), ("decode (total)", 1), ("decode", 1)):
        assert [int(size) for name, size in rows if name.strip() == step] == [1, 2, 32] * tables


@pytest.mark.slow
def test_forward_seconds_are_those_of_the_shard_s_cost_model(
        sockets: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command.run("", bench, ["-m", sockets[0], "-b", "3", "-s", "20", "-d", "4", "-r", "2"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    [one] = told["points"]
    assert told["shards"] == len(sockets)
    assert one["prefill_forward"]["p50"] == 1 + 0.5 * 3 + 0.25 * 60 + 0.125 * 60
    assert [one["decode_forward"][name] for name in ("least", "p50", "most")] == [
        1 + 0.5 * 3 + 0.125 * 3 * length for length in (21, 22, 23)]


def test_all_runs_but_the_first_ones_count(tmp_path: Path) -> None:
    [one] = measured(tmp_path, Settings(batch_size=(2,), warmups=2, runs=3, decode_length=4)).points
    assert (one.prefill.count, one.decode.count, one.decode_total.count) == (3, 9, 3)


def test_a_shard_that_says_several_tokens_a_step_gets_room_for_them(tmp_path: Path) -> None:
    found = measured(tmp_path, Settings(batch_size=(2,), sequence_length=16, runs=1), tokens_per_step=3)
    assert [one.decode.count for one in found.points] == [7]


def test_a_batch_that_does_not_fit_the_cache_is_left_out(tmp_path: Path) -> None:
    found = measured(tmp_path, Settings(batch_size=(1, 4, 2), sequence_length=20, runs=1), num_blocks=4)
    assert [one.batch_size for one in found.points] == [1, 2]
    assert found.left_out == {4: "it needs 8 blocks of the cache, which has 4"}


def test_if_nothing_could_be_measured_the_first_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no batch size could be measured: it needs 8 blocks of the cache, which has 3"):
        measured(tmp_path, Settings(batch_size=(4, 5), sequence_length=20, runs=1), num_blocks=3)


def test_what_a_warm_shard_refuses_is_left_out_and_the_next_is_measured(tmp_path: Path) -> None:
    async def scene() -> tuple[Found, Found]:
        async with bare_shards(tmp_path) as addresses:
            return await measure(addresses, SMALL), await measure(addresses, Settings(batch_size=(3, 1), runs=1))

    first, second = asyncio.run(scene())
    assert [one.batch_size for one in first.points] == [1, 2]
    assert [one.batch_size for one in second.points] == [1]
    assert second.left_out == {3: "30 prompt tokens would run, warm-up allowed 20"}


def test_a_shard_is_left_in_an_epoch_of_ours_with_nothing_in_it(tmp_path: Path) -> None:
    async def scene() -> list[int]:
        async with bare_shards(tmp_path) as addresses, connected(addresses) as ranks:
            await measure(addresses, SMALL)
            return [info.epoch for info in await ranks.infos()]

    assert asyncio.run(scene()) == [2]


def test_a_step_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(ShardFailed, match="failed: internal: "):
        measured(tmp_path, SMALL, faults="step_error@decode:1")


def test_what_the_model_cannot_hold_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--sequence-length 10 and --decode-length 2 need 11 .* has 9"):
        measured(tmp_path, SMALL, max_positions=9)


# -- shards started by the benchmark


@pytest.mark.slow
def test_without_a_socket_shards_are_started(capsys: pytest.CaptureFixture[str]) -> None:
    command.run("", bench, ["--num-shard", "2", "-b", "2", "-d", "2", "-r", "1", "-w", "0"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["model"], told["shards"], told["left_out"]) == ("simulated", 2, {})


@pytest.mark.slow
def test_a_real_model_is_measured_at_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make("tiny", tmp_path / "tiny")
    command.run("", bench, ["--model", str(folder), "--num-shard", "2", "--threads", "1", "-b", "1", "4", "-r", "2",
                           "--do-sample", "--top-n-tokens", "2"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["batch_size"] for one in told["points"]] == [1, 4]
    assert (told["model"], told["dtype"], told["do_sample"], told["top_n_tokens"]) == (str(folder), "float32", True, 2)


@pytest.mark.slow
def test_a_folder_without_a_model_is_told_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert ended("--model", str(tmp_path), "--num-shard", "2") == 1
    assert capfd.readouterr().err == (
        f"weft: python -m shard.rpc.server did not start: {tmp_path} holds no model: there is no config.json\n")


def test_a_model_at_the_hub_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script := tmp_path / "python").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/told; echo /the/folder\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert folder_of("org/name", "v2") == "/the/folder"
    assert (tmp_path / "told").read_text() == "-P -m launcher.cli download org/name --revision v2\n"


@pytest.mark.slow
def test_a_download_that_failed_has_said_why(
        monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    assert ended("--model", "org/none") == 2
    assert capfd.readouterr().err == "weft: HF_HUB_OFFLINE is set, so nothing is downloaded\n"


# -- the command line


def test_without_words_the_defaults_are_those_of_text_generation_inference() -> None:
    settings = parse()
    assert settings == DEFAULT
    assert (settings.batch_size, settings.sequence_length, settings.decode_length) == ((1, 2, 4, 8, 16, 32), 10, 8)
    assert (settings.runs, settings.warmups, settings.revision) == (10, 1, "main")


def test_the_flags_of_text_generation_benchmark_are_taken() -> None:
    settings = parse("-t", "org/name", "--revision", "v2", "-b", "1", "-b", "4", "-s", "20", "-d", "3", "-r", "5",
                     "-w", "0", "-m", "/tmp/text-generation-server-0", "--temperature", "0.5", "--top-k", "3",
                     "--top-p", "0.9", "--typical-p", "0.8", "--repetition-penalty", "1.2", "--frequency-penalty",
                     "0.1", "--watermark", "--do-sample", "--top-n-tokens", "2")
    assert settings == Settings(
        model="org/name", revision="v2", batch_size=(1, 4), sequence_length=20, decode_length=3, runs=5, warmups=0,
        master_shard_uds_path="/tmp/text-generation-server-0", sampling=Sampling(
            temperature=0.5, top_k=3, top_p=0.9, typical_p=0.8, repetition_penalty=1.2, frequency_penalty=0.1,
            watermark=True, do_sample=True, top_n_tokens=2))


def test_the_long_flags_say_the_same() -> None:
    assert parse("--tokenizer-name", "m", "--batch-size", "1", "2", "--sequence-length", "9", "--decode-length", "4",
                 "--runs", "2", "--warmups", "3", "--master-shard-uds-path", "/s-0") == parse(
        "-t", "m", "-b", "1", "2", "-s", "9", "-d", "4", "-r", "2", "-w", "3", "-m", "/s-0")


@pytest.mark.parametrize("wrong", [
    "--batch-size=0", "--sequence-length=0", "--decode-length=1", "--runs=0", "--warmups=-1", "--num-shard=0",
    "--temperature=0", "--top-k=0", "--top-p=2", "--repetition-penalty=0", "--frequency-penalty=3"])
def test_numbers_that_make_no_sense_are_refused(wrong: str) -> None:
    with pytest.raises(CycloptsError, match=wrong.partition("=")[0]):
        parse(wrong)


@pytest.mark.parametrize(("words", "code", "line"), [
    (["--model", "/no/such"], 2, "there is no folder /no/such"),
    (["--dtype", "int4"], 2, "dtype must be one of auto, float32, bfloat16, float16, got int4"),
    (["--runs", "many"], 2, 'Invalid value for --runs: unable to convert "many" into int.'),
    (["--socket", "/no/such.sock"], 1, "no shard answers at unix:/no/such.sock"),
    (["-m", "/no/such-0"], 1, "no shard answers at unix:/no/such-0"),
    (["-m", "/a-0", "--socket", "/a-1"], 2,
     "--socket and --master-shard-uds-path both say where shards run: give one of them"),
])
def test_what_is_wrong_is_told_in_one_line(
        words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(*words) == code
    assert capsys.readouterr().err == f"weft: {line}\n"


def test_text_generation_benchmark_wants_a_model(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["text-generation-benchmark", "-b", "1"])
    with pytest.raises(SystemExit):
        command.text_generation_benchmark()
    assert capsys.readouterr().err == "weft: a model must be named: --tokenizer-name FOLDER_OR_NAME\n"
