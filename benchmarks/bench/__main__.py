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

from benchmarks.bench.flags import shown
from benchmarks.bench.load.client import Target
from benchmarks.bench.load.generator import drive
from benchmarks.bench.load.http import NoAnswer, Server
from benchmarks.bench.load.prompts import counted_by_tokenizer, counter, read_prompts
from benchmarks.bench.load.record import Ask, Record
from benchmarks.bench.load.workload import make, sizes_of
from benchmarks.bench.report.html import html
from benchmarks.bench.report.live import Progress, showing
from benchmarks.bench.report.overhead import measured
from benchmarks.bench.report.plots import drawing
from benchmarks.bench.report.result import Result, names_of, to_csv, to_json
from benchmarks.bench.report.summary import summary
from benchmarks.bench.report.table import table
from benchmarks.bench.report.versus import Ratio, compared, ratio_table
from benchmarks.bench.settings import Settings, other, read_settings
from benchmarks.bench.shards import command as shards
from benchmarks.harness.results import hardware, today

SHARDS = "--shard"


class Failed(Exception):
    """Raised if nothing was measured."""


async def measure(settings: Settings, name: str, command: str, salt: str, results: list[Result]) -> None:
    """Run the load and append its result to `results`, also if it is interrupted after the first answer."""
    asks, facts = await prepared(settings, salt)
    given = asdict(settings) | {"api_key": "", "versus": shown(shlex.split(settings.versus))}
    records, stats = list[Record](), dict[str, Any]()
    progress, is_whole = Progress(), False
    try:
        async with nullcontext() if settings.quiet else showing(progress), measured() as overhead:
            await drive(settings.target, asks, settings.clients, seconds=settings.seconds, watch=progress,
                        records=records)
        is_whole = True
        stats = await what_it_counted(settings.target)
    finally:
        if records:
            window = settings.warm_up, end_of(settings, records, is_whole=is_whole)
            results.append(Result(
                name, command, given, today(), hardware(), facts, summary(records, window, settings.goals), records,
                overhead.told(records, is_open=settings.is_open), window, stats, is_whole))
    if not records:
        raise Failed("nothing was asked: --seconds were over before")
    if window[1] <= window[0]:
        raise Failed(f"everything was over after {window[1]:.1f} s, within --warm-up {settings.warm_up:g}")


def end_of(settings: Settings, records: Sequence[Record], *, is_whole: bool) -> float:
    """Return the end of the window: what arrives after --seconds does not count.

    The window ends earlier if all requests were sent or the run was interrupted."""
    last = max(record.ended for record in records)
    if settings.seconds is None:
        return last
    runs_dry = settings.is_open and settings.workload.is_limited
    return min(settings.seconds, last) if runs_dry or not is_whole else settings.seconds


async def prepared(settings: Settings, salt: str) -> tuple[Iterable[Ask], dict[str, str]]:
    """Return the requests to send, and facts about the server.

    In a closed loop with --seconds the requests are repeated, since the number needed is unknown."""
    target, server = settings.target, Server(settings.address)
    try:
        facts = await what_it_says(server, target)
        counted, unit = await counter(server, target.dialect, target.options, target.fields, settings.tokenizer)
        asks = await make(replace(settings.workload, salt=salt), counted)
    finally:
        server.close()
    if not asks:
        raise Failed("nothing would be asked: --seconds ends before the first request is sent")
    facts = {"weft": version("weft"), "python": platform.python_version(), "lengths are of": unit, **facts}
    return (asks if settings.is_open or settings.seconds is None else cycle(asks)), facts


async def what_it_says(server: Server, target: Target) -> dict[str, str]:
    """Return model and version as far as the server reports them at /info."""
    told = await fetched(server, target, "/info")
    names = "model_id", "version", "model_dtype", "model_device_type"
    return {f"server: {name}": str(told[name]) for name in names if told.get(name)}


async def what_it_counted(target: Target) -> dict[str, Any]:
    """Return the server's own counters since its start, if the dialect has a route for them.

    The load is over by then, so a server that does not answer is ignored."""
    if not target.dialect.stats:
        return {}
    server = Server(target.url)
    try:
        return await fetched(server, target, target.dialect.stats)
    except NoAnswer:
        return {}
    finally:
        server.close()


async def fetched(server: Server, target: Target, path: str) -> dict[str, Any]:
    """GET a path and return the JSON object of the answer; empty if there is none."""
    status, answer = await server.whole(server.request("GET", path, target.fields, b""))
    try:
        told = json.loads(answer) if status == 200 else {}
    except ValueError:
        told = {}
    return told if isinstance(told, dict) else {}


async def in_turn(settings: Settings, second: Settings | None, command: str, results: list[Result]) -> None:
    """Run once or, with a second run, in turns A B A B.

    Every run gets generated prompts of its own, so that no server finds them in its prefix cache."""
    if second is None:
        await measure(settings, settings.address, command, "", results)
        return
    for turn in range(1, settings.turns + 1):
        for name, one in (("A", settings), ("B", second)):
            await measure(replace(one, seed=one.seed + turn), name, command, f"{name.lower()}{turn}-", results)


def ratios(results: Sequence[Result]) -> list[Ratio]:
    """Return the ratios B / A of the turns in which both runs are complete."""
    pairs = zip(results[::2], results[1::2], strict=False)
    return compared([(first.summary, second.summary) for first, second in pairs if first.is_whole and second.is_whole])


def counted(results: Sequence[Result]) -> list[str]:
    """Return a line with the server's own counters for each result, as the study's client prints them."""
    return [f"{name}, by the server's own books: {json.dumps(result.stats)}"
            for name, result in zip(names_of(results), results, strict=True) if result.stats]


def notes(settings: Settings, second: Settings | None, results: Sequence[Result]) -> list[str]:
    """Return caveats that a reader of the figures should know."""
    found = [note for name, result in zip(names_of(results), results, strict=True) for note in notes_of(name, result)]
    asked = [record.ask.number for record in results[0].records]
    if settings.workload.is_salted and len(set(asked)) < len(asked):
        found.append(f"{len(set(asked))} prompts came again and again (--requests): a server's cache may know them")
    if second and not (settings.workload.is_salted and second.workload.is_salted):
        found.append("all turns asked the same prompts: what one computed another may find in the server's cache")
    return found


def notes_of(name: str, result: Result) -> Iterator[str]:
    good = [record for record in result.records if not record.error]
    if short := sum(record.num_tokens < record.ask.output_tokens for record in good):
        yield (f"{name}: {short} of {len(good)} answers have fewer tokens than were asked for: the model ended them, "
               "the server cut them, or it sends several at once and tells no number")
    if not result.is_whole:
        yield f"{name} was interrupted: requests that were under way are not in it, and it is left out of ratios"


def tell(settings: Settings, second: Settings | None, results: Sequence[Result]) -> None:
    """Print the results, then write the files, the cheapest first."""
    print(table(results), *counted(results), *notes(settings, second, results), sep="\n")
    comparison = ratios(results) if second else []
    if comparison:
        print(f"\nA: {settings.address}\nB: {shown(shlex.split(settings.versus))}\n{ratio_table(comparison)}")
    if settings.csv:
        Path(settings.csv).write_text(to_csv(results), "utf-8")
    if settings.json:
        Path(settings.json).write_text(to_json(results, comparison), "utf-8")
    if settings.html:
        Path(settings.html).write_text(html(results, comparison), "utf-8")


def check_places(settings: Settings) -> None:
    """Check before the first request that input files are readable and output files writable."""
    if settings.prompts:
        read_prompts(Path(settings.prompts))
    if settings.tokenizer:
        counted_by_tokenizer(settings.tokenizer)
    for path in filter(None, (settings.csv, settings.json, settings.html)):
        with Path(path).open("a"):
            pass
    if settings.html:
        drawing()


def check_sizes(settings: Settings, turns: Iterable[int]) -> None:
    """Check the lengths of the requests of each turn, since every turn draws its own."""
    for turn in turns:
        sizes_of(replace(settings.workload, seed=settings.seed + turn))


def allow_connections() -> None:
    """Raise the limit on open files to its maximum: an open loop needs a connection for each unfinished request."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def bench(words: list[str]) -> None:
    settings = read_settings(words)
    second = other(words, settings) if settings.versus else None
    for one in filter(None, (settings, second)):
        check_places(one)
        check_sizes(one, range(1, settings.turns + 1) if second else [0])
    allow_connections()
    results: list[Result] = []
    try:
        uvloop.run(in_turn(settings, second, shown(["weft", "bench", *words]), results))
    finally:
        if results:
            tell(settings, second, results)
    if lost := [name for name, result in zip(names_of(results), results, strict=True)
                if all(record.error for record in result.records)]:
        whose = "" if len(lost) == len(results) else f" of {', '.join(lost)}"
        raise Failed(f"every request{whose} failed")


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == [SHARDS]:
        shards.run("weft bench --shard", shards.bench, words[1:])
        return
    try:
        bench(words)
    except (CycloptsError, ValueError) as error:
        shards.fail(error, 2)
    except (Failed, NoAnswer, OSError) as error:
        shards.fail(error, 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
