"""Progress of a download as one line: bytes, rate, time left. Time is an argument."""

from collections import deque

WINDOW = 10.0  # seconds over which the rate is averaged
NARROWEST, WIDEST = 8, 32  # characters of the bar
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Meter:
    def __init__(self, what: str, total: int, done: int, now: float) -> None:
        """Start at `now`, with `done` bytes from an earlier download."""
        self.what, self.total, self.done = what, total, done
        self._marks = deque([(now, done)])

    def line(self, now: float) -> str:
        return f"{self.what}: {self._figures(now)}"

    def bar(self, now: float, columns: int) -> str:
        """Return the figures, after a bar if the columns suffice for one."""
        figures = self._figures(now)
        width = min(columns - len(figures) - len("[] "), WIDEST)
        if width < NARROWEST:
            return figures[:columns]
        filled = width * self.done // self.total if self.total else width
        return f"[{'=' * filled}{' ' * (width - filled)}] {figures}"

    def _figures(self, now: float) -> str:
        return ", ".join([f"{self._percent} %", f"{amount(self.done)} of {amount(self.total)}", *self._pace(now)])

    @property
    def _percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100

    def _pace(self, now: float) -> list[str]:
        """Return rate and time left, or nothing while the rate is not known."""
        rate = self._rate(now)
        if rate <= 0 or self.done >= self.total:
            return []
        return [f"{amount(rate)}/s", f"{clock((self.total - self.done) / rate)} left"]

    def _rate(self, now: float) -> float:
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW:
            self._marks.popleft()
        since, before = self._marks[0]
        return (self.done - before) / (now - since) if now > since else 0.0


def amount(size: float) -> str:
    """Format a number of bytes: 512 B, 1.3 GB."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def clock(seconds: float) -> str:
    """Format a duration: 0:09, 12:34, 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
