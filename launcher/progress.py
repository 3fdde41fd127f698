"""How far children are with their start, for whoever waits: a line that is redrawn on a terminal, or in a log a line
now and then. A short start leaves no trace in a log. Knows no child and nothing of their work.
"""

import asyncio

from launcher.voice import Out

PHASES = ("load", "check", "warm-up")
REDRAW, REPEAT = 0.1, 5.0  # seconds between two looks, on a terminal and in a log
WIDTH = 40  # a line of a child's log, which may be written over ours, is longer


class Start:
    """What the children told so far. Without a clock."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, tuple[int, int]]] = {}  # phase, child: done, total

    def hear(self, child: str, phase: str, done: int, total: int) -> None:
        self._told.setdefault(phase, {})[child] = (done, total)

    @property
    def phase(self) -> str:
        """The last one that anybody has reached; "" when nobody has."""
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
        self._said = ""  # the phase of the last line
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, child: str, phase: str, done: int, total: int) -> None:
        self._start.hear(child, phase, done, total)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
        elif self._said and self._start.phase != self._said:
            self._say()

    def end(self) -> None:
        """Nothing is under way any more."""
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
        # The cursor stays at the beginning, so that what a child says takes the place of what is no longer true.
        self._write(f"{self._start!s:{WIDTH}}\r" if self._redraws else f"{self._start}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def place(phase: str) -> int:
    """In the order in which a server starts; what we do not know comes last."""
    return PHASES.index(phase) if phase in PHASES else len(PHASES)
