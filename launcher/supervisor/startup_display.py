"""Startup progress of the children: a line that is redrawn on a terminal, or a log line every few seconds.

A start shorter than that interval logs nothing.
"""

import asyncio

from launcher.console_output import TextStream, write_if_possible

STARTUP_PHASES = ("start", "load", "check", "warm-up")
REDRAW_SECONDS, LOG_INTERVAL_SECONDS = 0.1, 5.0  # seconds between two updates, on a terminal and in a log
LINE_WIDTH = 40  # shorter than any log line of a child, which may overwrite the progress line


class ProgressByPhase:
    """Latest progress that each child has reported, by phase."""

    def __init__(self) -> None:
        self._progress_by_phase: dict[str, dict[str, tuple[int, int]]] = {}  # phase, child: done, total

    def update(self, child_name: str, phase: str, done: int, total: int) -> None:
        self._progress_by_phase.setdefault(phase, {})[child_name] = (done, total)

    @property
    def latest_phase(self) -> str:
        """Latest phase that any child has reached; "" before the first report."""
        return max(self._progress_by_phase, key=phase_index, default="")

    def __str__(self) -> str:
        figures = self._progress_by_phase[self.latest_phase].values()
        done, total = (sum(column) for column in zip(*figures, strict=True))
        if not total:
            return f"weft: {self.latest_phase}"
        return (f"weft: {self.latest_phase} {100 * done // total} % of "
                f"{max(total for _, total in figures) / 2**30:.2f} GiB")


class StartupDisplay:
    """Output of the startup progress: a line redrawn on a terminal, log lines elsewhere."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._progress = ProgressByPhase()
        self._shown_phase = ""  # the phase of the last line written
        self._timer: asyncio.TimerHandle | None = None

    def show_start(self) -> None:
        """Tell on a terminal that the processes are being started; their own reports follow after some seconds."""
        if self._is_terminal:
            self.update_progress("launcher", "start", 0, 0)

    def update_progress(self, child_name: str, phase: str, done: int, total: int) -> None:
        self._progress.update(child_name, phase, done, total)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._show_and_reschedule)
        elif self._shown_phase and self._progress.latest_phase != self._shown_phase:
            self._show_progress()

    def stop(self) -> None:
        """Stop the display, clear its line and drop all progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._shown_phase and self._is_terminal:
            write_if_possible(self._stream, " " * LINE_WIDTH + "\r")
        self._progress, self._shown_phase = ProgressByPhase(), ""

    @property
    def _interval_seconds(self) -> float:
        return REDRAW_SECONDS if self._is_terminal else LOG_INTERVAL_SECONDS

    def _show_and_reschedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._show_and_reschedule)
        self._show_progress()

    def _show_progress(self) -> None:
        self._shown_phase = self._progress.latest_phase
        # The cursor stays at the beginning of the line, so that a child's log line overwrites outdated progress.
        write_if_possible(self._stream, f"{self._progress!s:{LINE_WIDTH}}\r" if self._is_terminal
                          else f"{self._progress}\n")


def phase_index(phase: str) -> int:
    """Return the index of a phase in the order of a server's start; an unknown phase is last."""
    return STARTUP_PHASES.index(phase) if phase in STARTUP_PHASES else len(STARTUP_PHASES)
