"""`weft bench`: load a server, measure latency and throughput, and compare two runs. `--help` lists the settings."""

import json
import platform
import resource
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any

import uvloop
from cyclopts import CycloptsError

from benchmarks.bench.flag_rules import format_masked_command
from benchmarks.bench.load.generator import Target, run_load
from benchmarks.bench.load.http import HttpConnectionPool, RequestFailedError
from benchmarks.bench.load.prompts import choose_token_counter, load_prompts, make_local_token_counter
from benchmarks.bench.load.request_records import PlannedRequest, RequestRecord
from benchmarks.bench.load.workload import draw_request_specs, make_requests
from benchmarks.bench.report.html import render_html
from benchmarks.bench.report.load_generator_overhead import measure_overhead
from benchmarks.bench.report.plots import import_matplotlib
from benchmarks.bench.report.progress import BenchProgress, show_progress
from benchmarks.bench.report.result import BenchResult, make_unique_run_names, to_csv, to_json
from benchmarks.bench.report.server_comparison import MetricComparison, compare_metrics, format_ratio_table
from benchmarks.bench.report.summary import summarize_run
from benchmarks.bench.report.table import format_table, make_headlines
from benchmarks.bench.settings import BenchSettings, parse_settings, parse_versus_settings
from benchmarks.bench.shards import command as shards
from benchmarks.harness.reporting import describe_hardware, today

SHARD_FLAG = "--shard"


class BenchFailed(Exception):
    """Raised if nothing was measured."""


async def measure_run(settings: BenchSettings, name: str, command: str, prompt_salt: str,
                      results: list[BenchResult]) -> None:
    """Run the load and append its result to `results`, also if it is interrupted after the first answer."""
    requests, versions = await prepare_requests(settings, prompt_salt)
    shown_settings = asdict(settings) | {"api_key": "", "versus": format_masked_command(shlex.split(settings.versus))}
    records, stats = list[RequestRecord](), dict[str, Any]()
    progress, is_complete = BenchProgress(), False
    try:
        async with nullcontext() if settings.quiet else show_progress(progress), measure_overhead() as overhead:
            await run_load(settings.target, requests, settings.num_clients, seconds=settings.seconds, observer=progress,
                           records=records)
        is_complete = True
        stats = await fetch_server_stats(settings.target)
    finally:
        if records:
            window = settings.warm_up, compute_window_end(settings, records, is_complete=is_complete)
            results.append(BenchResult(name, command, shown_settings, today(), describe_hardware(), versions,
                                       summarize_run(records, window, settings.latency_goal), records,
                                       overhead.summarize(records, is_open_loop=settings.is_open_loop), window, stats,
                                       is_complete))
    if not records:
        raise BenchFailed("nothing was asked: --seconds were over before")
    if window[1] <= window[0]:
        raise BenchFailed(f"everything was over after {window[1]:.1f} s, within --warm-up {settings.warm_up:g}")


def compute_window_end(settings: BenchSettings, records: Sequence[RequestRecord], *, is_complete: bool) -> float:
    """Return the end of the window: what arrives after --seconds does not count.

    The window ends earlier if all requests were sent or the run was interrupted."""
    last_end = max(record.ended for record in records)
    if settings.seconds is None:
        return last_end
    may_run_out = settings.is_open_loop and settings.workload.can_run_out
    return min(settings.seconds, last_end) if may_run_out or not is_complete else settings.seconds


async def prepare_requests(settings: BenchSettings,
                           prompt_salt: str) -> tuple[Iterable[PlannedRequest], dict[str, str]]:
    """Return the requests to send, and facts about the server.

    In a closed loop with --seconds the requests are repeated, since the number needed is unknown."""
    target, connection_pool = settings.target, HttpConnectionPool(settings.base_url)
    try:
        versions = await fetch_server_info(connection_pool, target)
        count_tokens, unit = await choose_token_counter(connection_pool, target.dialect, target.options,
                                                        target.auth_header_line, settings.tokenizer)
        requests = await make_requests(replace(settings.workload, salt=prompt_salt), count_tokens)
    finally:
        connection_pool.close()
    if not requests:
        raise BenchFailed("nothing would be asked: --seconds ends before the first request is sent")
    versions = {"weft": version("weft"), "python": platform.python_version(), "lengths are of": unit, **versions}
    return (requests if settings.is_open_loop or settings.seconds is None else cycle(requests)), versions


async def fetch_server_info(connection_pool: HttpConnectionPool, target: Target) -> dict[str, str]:
    """Return model and version as far as the server reports them at /info."""
    info = await fetch_json_object(connection_pool, target, "/info")
    names = "model_id", "version", "model_dtype", "model_device_type"
    return {f"server: {name}": str(info[name]) for name in names if info.get(name)}


async def fetch_server_stats(target: Target) -> dict[str, Any]:
    """Return the server's own counters since its start, if the dialect has a route for them.

    The load is over by then, so a server that does not answer is ignored."""
    if not target.dialect.stats_path:
        return {}
    connection_pool = HttpConnectionPool(target.url)
    try:
        return await fetch_json_object(connection_pool, target, target.dialect.stats_path)
    except RequestFailedError:
        return {}
    finally:
        connection_pool.close()


async def fetch_json_object(connection_pool: HttpConnectionPool, target: Target, path: str) -> dict[str, Any]:
    """GET a path and return the JSON object of the answer; empty if there is none."""
    status, body = await connection_pool.fetch(connection_pool.build_request("GET", path, target.auth_header_line, b""))
    try:
        parsed = json.loads(body) if status == 200 else {}
    except ValueError:
        parsed = {}
    return parsed if isinstance(parsed, dict) else {}


async def measure_alternately(settings: BenchSettings, second_settings: BenchSettings | None, command: str,
                              results: list[BenchResult]) -> None:
    """Run once or, with a second run, in turns A B A B.

    Every run gets generated prompts of its own, so that no server finds them in its prefix cache."""
    if second_settings is None:
        await measure_run(settings, settings.base_url, command, "", results)
        return
    for turn in range(1, settings.turns + 1):
        for name, run_settings in (("A", settings), ("B", second_settings)):
            await measure_run(replace(run_settings, seed=run_settings.seed + turn), name, command,
                              f"{name.lower()}{turn}-", results)


def compare_runs(results: Sequence[BenchResult]) -> list[MetricComparison]:
    """Return the ratios B / A of the turns in which both runs are complete."""
    pairs = zip(results[::2], results[1::2], strict=False)
    return compare_metrics([(first.summary, second.summary) for first, second in pairs if first.is_whole
                            and second.is_whole])


def format_server_stats(results: Sequence[BenchResult]) -> list[str]:
    """Return a line with the server's own counters for each result, as the study's client prints them."""
    return [f"{name}, by the server's own books: {json.dumps(result.stats)}"
            for name, result in zip(make_unique_run_names(results), results, strict=True) if result.stats]


def collect_caveats(settings: BenchSettings, second_settings: BenchSettings | None,
                    results: Sequence[BenchResult]) -> list[str]:
    """Return caveats that a reader of the figures should know."""
    caveats = [note for name, result in zip(make_unique_run_names(results), results, strict=True)
               for note in iter_result_caveats(name, result)]
    prompt_numbers = [record.ask.number for record in results[0].records]
    if settings.workload.depends_on_salt and len(set(prompt_numbers)) < len(prompt_numbers):
        caveats.append(
            f"{len(set(prompt_numbers))} prompts came again and again (--requests): a server's cache may know them")
    if second_settings and not (settings.workload.depends_on_salt and second_settings.workload.depends_on_salt):
        caveats.append("all turns asked the same prompts: what one computed another may find in the server's cache")
    return caveats


def iter_result_caveats(name: str, result: BenchResult) -> Iterator[str]:
    successful = [record for record in result.records if not record.error]
    if num_short := sum(record.num_tokens < record.ask.output_tokens for record in successful):
        yield (f"{name}: {num_short} of {len(successful)} answers have fewer tokens than were asked for: the model "
               f"ended them, " "the server cut them, or it sends several at once and tells no number")
    if not result.is_whole:
        yield f"{name} was interrupted: requests that were under way are not in it, and it is left out of ratios"


def report_results(settings: BenchSettings, second_settings: BenchSettings | None,
                   results: Sequence[BenchResult]) -> None:
    """Print the results, then write the files, the cheapest first."""
    print(*make_headlines(results), "", format_table(results), *format_server_stats(results),
          *collect_caveats(settings, second_settings, results), sep="\n")
    comparison = compare_runs(results) if second_settings else []
    if comparison:
        print(f"\nA: {settings.base_url}\nB: "
              f"{format_masked_command(shlex.split(settings.versus))}\n{format_ratio_table(comparison)}")
    if settings.csv:
        Path(settings.csv).write_text(to_csv(results), "utf-8")
    if settings.json:
        Path(settings.json).write_text(to_json(results, comparison), "utf-8")
    if settings.html:
        Path(settings.html).write_text(render_html(results, comparison), "utf-8")


def check_files(settings: BenchSettings) -> None:
    """Check before the first request that input files are readable and output files writable."""
    if settings.prompts:
        load_prompts(Path(settings.prompts))
    if settings.tokenizer:
        make_local_token_counter(settings.tokenizer)
    for path in filter(None, (settings.csv, settings.json, settings.html)):
        with Path(path).open("a"):
            pass
    if settings.html:
        import_matplotlib()


def check_request_lengths(settings: BenchSettings, turns: Iterable[int]) -> None:
    """Check the lengths of the requests of each turn, since every turn draws its own."""
    for turn in turns:
        draw_request_specs(replace(settings.workload, seed=settings.seed + turn))


def raise_open_file_limit() -> None:
    """Raise the limit on open files to its maximum: an open loop needs a connection for each unfinished request."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def bench(arguments: list[str]) -> None:
    settings = parse_settings(arguments)
    second_settings = parse_versus_settings(arguments, settings) if settings.versus else None
    for run_settings in filter(None, (settings, second_settings)):
        check_files(run_settings)
        check_request_lengths(run_settings, range(1, settings.turns + 1) if second_settings else [0])
    raise_open_file_limit()
    results: list[BenchResult] = []
    try:
        uvloop.run(measure_alternately(settings, second_settings, format_masked_command(["weft", "bench", *arguments]),
                                       results))
    finally:
        if results:
            report_results(settings, second_settings, results)
    raise_if_most_failed(results)


def raise_if_most_failed(results: Sequence[BenchResult]) -> None:
    """Raise BenchFailed if more requests of a run failed than succeeded, since its figures then say little."""
    failed_runs = {name: result for name, result in zip(make_unique_run_names(results), results, strict=True)
                   if not result.records
                   or 2 * sum(bool(record.error) for record in result.records) > len(result.records)}
    if failed_runs:
        has_success = any(not record.error for result in failed_runs.values() for record in result.records)
        failed_run_names = "" if len(failed_runs) == len(results) else f" of {', '.join(failed_runs)}"
        raise BenchFailed(f"{'most requests' if has_success else 'every request'}{failed_run_names} failed")


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] == [SHARD_FLAG]:
        shards.run_cli("weft bench --shard", shards.bench, arguments[1:])
        return
    try:
        bench(arguments)
    except (CycloptsError, ValueError) as error:
        shards.exit_with_error(error, 2)
    except (BenchFailed, RequestFailedError, OSError) as error:
        shards.exit_with_error(error, 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
