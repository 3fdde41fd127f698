"""Progress display of a run. The load only counts; a separate task draws a few times per second.

On a terminal one table is redrawn; otherwise a line is printed every few seconds.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import TextIO

from benchmarks.bench.load.request_records import RequestRecord
from router.simulation.run_stats import align_columns, format_seconds_as_ms, percentile

REDRAW_SECONDS, LINE_INTERVAL_SECONDS = 0.25, 5.0  # seconds between two drawings
RATE_WINDOW_SECONDS = 3.0  # seconds over which tokens/s is averaged
MAX_KEPT_LATENCIES = 1000  # answers counted for the time to first token, so that the cost of drawing stays constant

ShowFigures = Callable[[dict[str, str]], None]


class BenchProgress:
    """Counts of a run so far, for the progress display. It observes the requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_at = clock()
        self.num_sent = self.num_answered = self.num_failed = self.num_tokens = 0
        self._times_to_first_token: deque[float] = deque(maxlen=MAX_KEPT_LATENCIES)
        self._token_counts = deque([(self._started_at, 0)])  # (time, number of tokens) over the last seconds

    def on_request_sent(self, _: RequestRecord) -> None:
        self.num_sent += 1

    def on_token(self, _: RequestRecord) -> None:
        self.num_tokens += 1

    def on_request_ended(self, record: RequestRecord) -> None:
        """Count the tokens without an event: one event may hold several, and an answer not streamed has no events."""
        self.num_failed += bool(record.error)
        self.num_answered += not record.error
        self.num_tokens += max(0, record.num_tokens - len(record.times))
        if record.time_to_first_token is not None:
            self._times_to_first_token.append(record.time_to_first_token)

    def format_metrics(self) -> dict[str, str]:
        """Return the current figures. tokens/s counts from the latest call at least `RATE_WINDOW_SECONDS` seconds
        ago."""
        now = self._clock()
        return {
            "elapsed": f"{now - self._started_at:.1f} s", "sent": f"{self.num_sent}",
            "answered": f"{self.num_answered}",
            "failed": f"{self.num_failed}", "in flight": f"{self.num_sent - self.num_answered - self.num_failed}",
            "tokens/s": f"{self._tokens_per_second(now):.0f}",
            **{f"first token p{share}": f"{format_seconds_as_ms(percentile(self._times_to_first_token, share))} ms"
               for share in (50, 99) if self._times_to_first_token}}

    def _tokens_per_second(self, now: float) -> float:
        while len(self._token_counts) > 1 and self._token_counts[1][0] <= now - RATE_WINDOW_SECONDS:
            self._token_counts.popleft()
        window_start, num_tokens = self._token_counts[0]
        self._token_counts.append((now, self.num_tokens))
        return (self.num_tokens - num_tokens) / (now - window_start) if now > window_start else 0.0


@asynccontextmanager
async def show_progress(progress: BenchProgress, out: TextIO | None = None,
                        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """Show progress on `out`, by default stderr, as long as the block runs, and then the final figures."""
    out = out or sys.stderr
    with open_terminal_display(out) if out.isatty() else open_line_display(out) as (interval,
                                                                                                          show):
        task = asyncio.create_task(redraw_periodically(progress, show, interval, sleep))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            show(progress.format_metrics())


async def redraw_periodically(progress: BenchProgress, show: ShowFigures, interval: float,
                              sleep: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await sleep(interval)
        show(progress.format_metrics())


@contextmanager
def open_line_display(out: TextIO) -> Iterator[tuple[float, ShowFigures]]:
    yield LINE_INTERVAL_SECONDS, lambda figures: print(", ".join(f"{name} {value}" for name, value in figures.items()),
                                                       file=out, flush=True)


@contextmanager
def open_terminal_display(out: TextIO) -> Iterator[tuple[float, ShowFigures]]:
    """Draw plain text: rich's own tables take several milliseconds, during which no token would be read."""
    console, live, text = (import_module(f"rich.{name}") for name in ("console", "live", "text"))
    with live.Live(console=console.Console(file=out), auto_refresh=False, redirect_stdout=False,
                   redirect_stderr=False) as live_display:
        yield REDRAW_SECONDS, lambda figures: live_display.update(
            text.Text(align_columns(list(map(list, figures.items())))), refresh=True)
