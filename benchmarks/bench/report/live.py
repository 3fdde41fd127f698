"""Progress display of a run. The load only counts; a separate task draws a few times per second.

On a terminal with rich installed one table is redrawn; otherwise a line is printed every few seconds.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TextIO

from benchmarks.bench.load.record import Record
from router.simulation.report import aligned, milliseconds, percentile

FRAME, LINE = 0.25, 5.0  # seconds between two drawings
SPAN = 3.0  # seconds over which tokens/s is averaged
LATEST = 1000  # answers counted for the time to first token, so that the cost of drawing stays constant

Show = Callable[[dict[str, str]], None]


class Progress:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.num_sent = self.num_answered = self.num_failed = self.num_tokens = 0
        self._first_tokens: deque[float] = deque(maxlen=LATEST)
        self._counts = deque([(self._began, 0)])  # (time, number of tokens) over the last seconds

    def sent(self, _: Record) -> None:
        self.num_sent += 1

    def token(self, _: Record) -> None:
        self.num_tokens += 1

    def ended(self, record: Record) -> None:
        """Count the tokens without an event: one event may hold several, and an answer not streamed has no events."""
        self.num_failed += bool(record.error)
        self.num_answered += not record.error
        self.num_tokens += max(0, record.num_tokens - len(record.times))
        if record.first_token is not None:
            self._first_tokens.append(record.first_token)

    def figures(self) -> dict[str, str]:
        """Return the current figures. tokens/s counts from the latest call at least `SPAN` seconds ago."""
        now = self._clock()
        return {
            "elapsed": f"{now - self._began:.1f} s", "sent": f"{self.num_sent}", "answered": f"{self.num_answered}",
            "failed": f"{self.num_failed}", "in flight": f"{self.num_sent - self.num_answered - self.num_failed}",
            "tokens/s": f"{self._rate(now):.0f}",
            **{f"first token p{share}": f"{milliseconds(percentile(self._first_tokens, share))} ms"
               for share in (50, 99) if self._first_tokens}}

    def _rate(self, now: float) -> float:
        while len(self._counts) > 1 and self._counts[1][0] <= now - SPAN:
            self._counts.popleft()
        then, num_tokens = self._counts[0]
        self._counts.append((now, self.num_tokens))
        return (self.num_tokens - num_tokens) / (now - then) if now > then else 0.0


@asynccontextmanager
async def showing(progress: Progress, out: TextIO | None = None,
                  rest: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """Show progress on `out`, by default stderr, as long as the block runs, and then the final figures."""
    out = out or sys.stderr
    with screen(out) if out.isatty() and find_spec("rich") else lines(out) as (seconds, show):
        task = asyncio.create_task(draw(progress, show, seconds, rest))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            show(progress.figures())


async def draw(progress: Progress, show: Show, seconds: float, rest: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await rest(seconds)
        show(progress.figures())


@contextmanager
def lines(out: TextIO) -> Iterator[tuple[float, Show]]:
    yield LINE, lambda figures: print(", ".join(f"{name} {value}" for name, value in figures.items()), file=out,
                                      flush=True)


@contextmanager
def screen(out: TextIO) -> Iterator[tuple[float, Show]]:
    """Draw plain text: rich's own tables take several milliseconds, during which no token would be read."""
    console, live, text = (import_module(f"rich.{name}") for name in ("console", "live", "text"))
    with live.Live(console=console.Console(file=out), auto_refresh=False, redirect_stdout=False,
                   redirect_stderr=False) as drawn:
        yield FRAME, lambda figures: drawn.update(text.Text(aligned(list(map(list, figures.items())))), refresh=True)
