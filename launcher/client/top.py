"""The `weft top` command: the live batch, the queue, rates and the cache of a running server in the terminal."""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from launcher.client.chat_client import ChatRequestFailed
from launcher.client.engine_events import EngineView, RunningSequence, open_engine_events
from launcher.client.terminal_chat import REMOVED_CONTROL_CHARACTERS
from launcher.console_output import align_columns

REDRAW_SECONDS = 0.25  # on a terminal; elsewhere a line is printed every second
LINE_SECONDS = 1.0
ONCE_SECONDS = 1.0  # for which --once watches, so that rates are those of now
RUNNING_HEADER = ["lane", "id", "state", "prompt", "generated", "age", "tenant", "adapter", "request"]
WAITING_HEADER = ["id", "prompt", "age", "cause", "tenant", "adapter", "request"]
LEFT_COLUMNS = {"lane": (2, 6, 7, 8), "id": (3, 4, 5, 6)}  # aligned to the left, by the first column of the table
MIN_COLUMNS = 3  # of a table: the others are left out where the terminal is too narrow
MIN_WIDTH = 20
BAR_WIDTH = 20


@dataclass(frozen=True, slots=True)
class TopSettings:
    """Settings of `weft top`: the server, and the form of the output."""

    url: str
    api_key: str = ""
    is_once: bool = False
    as_json: bool = False


def run_top_command(settings: TopSettings) -> int:
    """Show the engine until the server or the user ends it, or once. Return 1 if it cannot be watched."""
    try:
        asyncio.run(print_engine_state_once(settings) if settings.is_once else watch_engine(settings))
    except ChatRequestFailed as error:
        sys.stderr.write(f"weft: {error}\n".translate(REMOVED_CONTROL_CHARACTERS))
        return 1
    except (LookupError, TypeError, AttributeError):
        sys.stderr.write(f"weft: {settings.url} answers in another format; is it weft, and of this version?\n")
        return 1
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader of standard output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


async def print_engine_state_once(settings: TopSettings) -> None:
    """Watch for a moment, and print the state then: as a table, or as the JSON of /v1/engine/state."""
    view = EngineView()
    async with open_engine_events(settings.url, settings.api_key) as events:
        with suppress(TimeoutError):
            async with asyncio.timeout(ONCE_SECONDS):
                async for event in events:
                    view.apply(event)
    if not view.state:
        raise ChatRequestFailed(f"{settings.url} sent no state within {ONCE_SECONDS:g} s")
    write_line(json.dumps(describe_view(view)) if settings.as_json
               else "\n".join(format_view(view, get_terminal_size().columns)))


async def watch_engine(settings: TopSettings) -> None:
    """Show every change until the server ends the events. With --json, each event is a line."""
    view = EngineView()
    next_at, clock = 0.0, asyncio.get_running_loop().time
    async with open_engine_events(settings.url, settings.api_key) as events:
        with open_display() as (seconds, show):
            async for name, data in events:
                if settings.as_json:
                    write_line(json.dumps({"event": name, **data}))
                    continue
                view.apply((name, data))
                if clock() >= next_at:
                    next_at = clock() + seconds
                    show(view)
    raise ChatRequestFailed("the server ended the events; it is shutting down")


@contextmanager
def open_display() -> Iterator[tuple[float, Callable[[EngineView], None]]]:
    """Return how often to show the view, and a function that does: the whole screen of a terminal, else a line."""
    if not sys.stdout.isatty():
        yield LINE_SECONDS, lambda view: write_line(format_summary(view))
        return
    console = Console(file=sys.stdout)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False,
              redirect_stderr=False) as live_display:
        def show(view: EngineView) -> None:
            lines = format_view(view, console.width)[:max(console.height - 1, 1)]
            live_display.update(Text("\n".join(lines), no_wrap=True), refresh=True)

        yield REDRAW_SECONDS, show


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# -- formats


def describe_view(view: EngineView) -> dict[str, Any]:
    """Return the state as JSON, in the form of /v1/engine/state; `running` as the steps since have changed it."""
    running = [{**sequence.facts, "lane": sequence.lane, "state": sequence.state,
                "prefilled_tokens": sequence.num_prefilled, "generated_tokens": sequence.num_generated}
               for sequence in sort_running_by_lane(view)]
    return view.state | {"running": running}


def format_view(view: EngineView, width: int) -> list[str]:
    """Return the lines of the whole view, none wider than `width`."""
    state, width = view.state, max(width, MIN_WIDTH)
    server, waiting = state["server"], state["queue"]["waiting"]
    readiness = "ready" if server["ready"] else f"not ready: {server['not_ready_reason']}"
    running = sort_running_by_lane(view)
    lines = [f"{server['model']} on {server['num_shard']} {server['device']} ({server['dtype']}), weft "
             f"{server['version']}, {readiness}", *format_summary(view).split("  ")[:-1], format_cache(state["blocks"]),
             "", f"running {len(running)} of {server['max_batch_size']}"]
    if running:
        lines += format_table(RUNNING_HEADER, [describe_running_row(sequence, state["t"]) for sequence in running],
                              width)
    lines += ["", f"waiting {state['queue']['length']}, {state['queue']['tokens']:,} tokens"]
    if waiting:
        lines += format_table(WAITING_HEADER, [describe_waiting_row(entry, state["t"]) for entry in waiting], width)
    return [line.translate(REMOVED_CONTROL_CHARACTERS)[:width] for line in lines]


def format_summary(view: EngineView) -> str:
    """Return a line of figures; two blanks separate its parts."""
    rates, blocks, state = view.state["rates"], view.state["blocks"], view.state
    return "  ".join([
        f"{len(view.running)} running, {state['queue']['length']} waiting",
        f"{format_figure(rates['tokens_per_second'])} tokens/s, {format_figure(rates['prompt_tokens_per_second'])} "
        f"prompt tokens/s, {format_figure(rates['requests_per_second'])} requests/s",
        f"first token {format_percentiles(rates['first_token_ms'])}, gap {format_percentiles(rates['gap_ms'])}",
        f"step {format_figure(rates['step_ms'])} ms, {format_figure(rates['batch_size'])} rows",
        f"cache {blocks['used'] / blocks['total']:.0%}"])


def format_cache(blocks: dict[str, Any]) -> str:
    """Return a bar of the cache: blocks that are held (#), kept for the prefix cache (+), and free (.)."""
    num_held, num_kept = (round(BAR_WIDTH * blocks[name] / blocks["total"]) for name in ("used", "cached"))
    bar = ("#" * num_held + "+" * num_kept)[:BAR_WIDTH].ljust(BAR_WIDTH, ".")
    return (f"cache [{bar}] {blocks['used']:,} used ({blocks['shared']:,} shared), {blocks['cached']:,} cached, "
            f"{blocks['free']:,} free of {blocks['total']:,} blocks")


def describe_running_row(sequence: RunningSequence, now: float) -> list[str]:
    facts = sequence.facts
    prompt = facts.get("prompt_tokens", 0)
    progress = f"{sequence.num_prefilled}/{prompt}" if sequence.state == "prefill" else f"{prompt}"
    return ["-" if sequence.lane is None else str(sequence.lane), str(facts["id"]), sequence.state, progress,
            f"{sequence.num_generated}/{facts.get('max_new_tokens', '?')}", format_age(facts, now),
            *describe_owner(facts)]


def describe_waiting_row(entry: dict[str, Any], now: float) -> list[str]:
    return [str(entry["id"]), str(entry["prompt_tokens"]), format_age(entry, now), str(entry["cause"]),
            *describe_owner(entry)]


def describe_owner(facts: dict[str, Any]) -> list[str]:
    """Return tenant, adapter and request; where a name is hidden, the number of the tenant or adapter."""
    adapter = facts.get("adapter") or (f"#{facts['adapter_ordinal']}" if facts.get("adapter_ordinal") else "-")
    tenant = facts.get("tenant") or (f"#{facts['tenant_ordinal']}" if facts.get("tenant") is None
                                     and facts.get("tenant_ordinal") else "-")
    return [tenant, adapter, facts.get("request_id") or "-"]


def format_table(header: list[str], rows: list[list[str]], width: int) -> list[str]:
    """Return the lines of a table. The last columns are left out as long as it is too wide."""
    cells = [header, *([" ".join(cell.translate(REMOVED_CONTROL_CHARACTERS).split()) for cell in row] for row in rows)]
    num_columns = len(header)
    while True:
        lines = align_columns([row[:num_columns] for row in cells], left_columns=LEFT_COLUMNS[header[0]]).splitlines()
        if num_columns == MIN_COLUMNS or max(map(len, lines)) <= width:
            return lines
        num_columns -= 1


def sort_running_by_lane(view: EngineView) -> list[RunningSequence]:
    return sorted(view.running.values(), key=lambda sequence: (sequence.lane is None, sequence.lane or 0,
                                                               sequence.facts["id"]))


def format_figure(figure: float | None) -> str:
    return "-" if figure is None else f"{figure:.1f}"


def format_percentiles(percentiles: dict[str, float | None]) -> str:
    return f"{format_figure(percentiles['p50'])}/{format_figure(percentiles['p99'])} ms (p50/p99)"


def format_age(facts: dict[str, Any], now: float) -> str:
    return f"{max(now - facts['submitted_at'], 0.0):.1f} s" if "submitted_at" in facts else "-"
