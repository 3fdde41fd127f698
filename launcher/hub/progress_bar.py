"""Progress of a download as one line: bytes, rate, time left. Time is an argument."""

from collections import deque

from launcher.console_output import format_bytes

RATE_WINDOW_SECONDS = 10.0  # seconds over which the rate is averaged
MIN_BAR_WIDTH, MAX_BAR_WIDTH = 8, 32  # characters of the bar


class DownloadProgress:
    """Bytes of a download that are done, formatted as a line or a bar with rate and time left."""

    def __init__(self, title: str, total_bytes: int, done_bytes: int, now: float) -> None:
        """Start at `now`, with `done_bytes` bytes from an earlier download."""
        self.title, self.total_bytes, self.done_bytes = title, total_bytes, done_bytes
        self._samples = deque([(now, done_bytes)])

    def format_line(self, now: float) -> str:
        return f"{self.title}: {self._format_figures(now)}"

    def format_bar(self, now: float, columns: int) -> str:
        """Return the figures, after a bar if the columns suffice for one."""
        figures = self._format_figures(now)
        width = min(columns - len(figures) - len("[] "), MAX_BAR_WIDTH)
        if width < MIN_BAR_WIDTH:
            return figures[:columns]
        filled = width * self.done_bytes // self.total_bytes if self.total_bytes else width
        return f"[{'=' * filled}{' ' * (width - filled)}] {figures}"

    def _format_figures(self, now: float) -> str:
        return ", ".join([f"{self._percent} %", f"{format_bytes(self.done_bytes)} of {format_bytes(self.total_bytes)}",
                          *self._format_rate_and_time_left(now)])

    @property
    def _percent(self) -> int:
        return 100 * self.done_bytes // self.total_bytes if self.total_bytes else 100

    def _format_rate_and_time_left(self, now: float) -> list[str]:
        """Return rate and time left, or nothing while the rate is not known."""
        rate = self._measure_rate(now)
        if rate <= 0 or self.done_bytes >= self.total_bytes:
            return []
        return [f"{format_bytes(rate)}/s", f"{format_duration((self.total_bytes - self.done_bytes) / rate)} left"]

    def _measure_rate(self, now: float) -> float:
        self._samples.append((now, self.done_bytes))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_WINDOW_SECONDS:
            self._samples.popleft()
        sampled_at, bytes_before = self._samples[0]
        return (self.done_bytes - bytes_before) / (now - sampled_at) if now > sampled_at else 0.0


def format_duration(seconds: float) -> str:
    """Format a duration: 0:09, 12:34, 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
