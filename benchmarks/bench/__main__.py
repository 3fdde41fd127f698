"""`weft bench`: a load on a server, what it felt like, and how two runs compare. `--help` tells the settings.

Knows no figure by its meaning.
"""

import json
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import NoReturn

import uvloop
from cyclopts import CycloptsError

from benchmarks.bench import shards
from benchmarks.bench.client import Target
from benchmarks.bench.http import NoAnswer, Server
from benchmarks.bench.load import drive
from benchmarks.bench.overhead import measured
from benchmarks.bench.progress import Progress, showing
from benchmarks.bench.prompts import counter
from benchmarks.bench.record import Ask
from benchmarks.bench.report import html
from benchmarks.bench.result import Result, to_csv, to_json
from benchmarks.bench.settings import Settings, other, read_settings
from benchmarks.bench.summary import summary
from benchmarks.bench.table import table
from benchmarks.bench.versus import Ratio, compared, ratio_table
from benchmarks.bench.workload import make
from benchmarks.saved import hardware, today

SHARDS = "--shard"


class Failed(Exception):
    """Nothing was measured."""


async def measure(settings: Settings, name: str, command: str, salt: str) -> Result:
    asks, facts = await prepared(settings, salt)
    progress = Progress()
    async with nullcontext() if settings.quiet else showing(progress), measured() as overhead:
        records = await drive(settings.target, asks, settings.clients, seconds=settings.seconds, watch=progress)
    end = max(record.ended for record in records)
    window = settings.warm_up, end if settings.seconds is None else min(end, settings.seconds)
    given = asdict(settings) | {"api_key": "", "versus": masked(settings.versus)}
    return Result(name, command, given, today(), hardware(), facts, summary(records, window, settings.goals), records,
                  overhead.told(records, is_open=settings.is_open), window)


async def prepared(settings: Settings, salt: str) -> tuple[Iterable[Ask], dict[str, str]]:
    """What is going to be asked, and what the server says of itself. A time that is to be filled needs more asks than
    anybody can count."""
    target, server = settings.target, Server(settings.url)
    try:
        counted, unit = await counter(server, target.dialect, target.options, target.fields, settings.tokenizer)
        asks = await make(replace(settings.workload, salt=salt), counted)
        facts = {"weft": version("weft"), "python": platform.python_version(), "lengths are of": unit}
        facts |= await what_it_says(server, target)
    finally:
        server.close()
    if not asks:
        raise Failed("nothing would be asked: --seconds ends before the first request is sent")
    return (asks if settings.is_open or settings.seconds is None else cycle(asks)), facts


async def what_it_says(server: Server, target: Target) -> dict[str, str]:
    """Of its model and version, where it says so."""
    pieces: list[bytes] = []
    status = await server.exchange(server.request("GET", "/info", target.fields, b""),
                                   lambda _, piece, __: pieces.append(piece))
    try:
        told = json.loads(b"".join(pieces)) if status == 200 else {}
    except ValueError:
        told = {}
    names = "model_id", "version", "model_dtype", "model_device_type"
    return {f"server: {name}": str(told[name]) for name in names if isinstance(told, dict) and told.get(name)}


async def in_turn(settings: Settings, second: Settings | None, command: str) -> list[Result]:
    """A run, or A B A B. Each asks what the others do in other words, which no cache knows."""
    if second is None:
        return [await measure(settings, settings.url, command, "")]
    results = []
    for turn in range(1, settings.turns + 1):
        for name, one in (("A", settings), ("B", second)):
            results.append(await measure(replace(one, seed=one.seed + turn), f"{name}{turn}", command,
                                         f"{name.lower()}{turn}-"))
    return results


def masked(command: str) -> str:
    """Keys are secret, and results are shown around."""
    return re.sub(r"(--api-key[= ]+)[^\s']+", r"\1...", command)


def ratios(results: Sequence[Result]) -> list[Ratio]:
    pairs = zip(results[::2], results[1::2], strict=True)
    return compared([(first.summary, second.summary) for first, second in pairs])


def tell(settings: Settings, results: Sequence[Result], comparison: Sequence[Ratio]) -> None:
    print(table(results))
    if comparison:
        print(f"\nA: {settings.url}\nB: {masked(settings.versus)}\n{ratio_table(comparison)}")
    pages = {settings.json: to_json, settings.html: html}
    for path, page in pages.items():
        if path:
            Path(path).write_text(page(results, comparison))
    if settings.csv:
        Path(settings.csv).write_text(to_csv(results))


def bench(words: list[str]) -> None:
    settings = read_settings(words)
    second = other(words, settings) if settings.versus else None
    command = masked(shlex.join(["weft", "bench", *words]))
    results = uvloop.run(in_turn(settings, second, command))
    tell(settings, results, ratios(results) if second else ())
    if all(record.error for result in results for record in result.records):
        raise Failed("every request failed")


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == [SHARDS]:
        shards.run("weft bench --shard", shards.bench, words[1:])
        return
    try:
        bench(words)
    except (CycloptsError, ValueError) as error:
        fail(str(error), 2)
    except (Failed, NoAnswer, OSError) as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def fail(reason: str, code: int) -> NoReturn:
    sys.stderr.write(f"weft: {' '.join(reason.split())}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
