"""Startup progress of the children: a line that is redrawn on a terminal, or a log line every few seconds.

A start shorter than that interval logs nothing.
"""

import asyncio

from launcher.output import Out

PHASES = ("load", "check", "warm-up")
REDRAW, REPEAT = 0.1, 5.0  # seconds between two updates, on a terminal and in a log
WIDTH = 40  # shorter than any log line of a child, which may overwrite the progress line


class Start:
    """Latest progress that each child has reported, by phase."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, tuple[int, int]]] = {}  # phase, child: done, total

    def hear(self, child: str, phase: str, done: int, total: int) -> None:
        self._told.setdefault(phase, {})[child] = (done, total)

    @property
    def phase(self) -> str:
        """Latest phase that any child has reached; "" before the first report."""
        return max(self._told, key=place, default="")

    def __str__(self) -> str:
        figures = self._told[self.phase].values()
        done, total = (sum(column) for column in zip(*figures, strict=True))
        if not total:
            return f"weft: {self.phase}"
        return f"weft: {self.phase} {100 * done // total} % of {max(total for _, total in figures) / 2**30:.2f} GiB"


class Display:
    def __init__(self, out: Out) -> None:
        self._out = out
        self._redraws = out.isatty()
        self._start = Start()
        self._said = ""  # the phase of the last line written
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, child: str, phase: str, done: int, total: int) -> None:
        self._start.hear(child, phase, done, total)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
        elif self._said and self._start.phase != self._said:
            self._say()

    def end(self) -> None:
        """Stop the display, clear its line and drop all progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._said and self._redraws:
            self._write(" " * WIDTH + "\r")
        self._start, self._said = Start(), ""

    @property
    def _interval(self) -> float:
        return REDRAW if self._redraws else REPEAT

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
        self._say()

    def _say(self) -> None:
        self._said = self._start.phase
        # The cursor stays at the beginning of the line, so that a child's log line overwrites outdated progress.
        self._write(f"{self._start!s:{WIDTH}}\r" if self._redraws else f"{self._start}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def place(phase: str) -> int:
    """Return the index of a phase in the order of a server's start; an unknown phase is last."""
    return PHASES.index(phase) if phase in PHASES else len(PHASES)
