"""Peak anonymous memory of a shard and the time from start to first token, for random weights in a real shape.

Runs `weft serve` as users do. `python -P -m benchmarks.experiments.startup_time_and_memory --help` lists the settings.
The last line is JSON.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

from cyclopts import Parameter

from benchmarks.harness.experiment import PositiveInt, RandomModelSettings, run_experiment
from benchmarks.harness.random_checkpoints import MODEL_CONFIGS, iter_tensor_shapes
from benchmarks.harness.reporting import report_results

EXTRA_BYTES_ALLOWED = 0.5e9  # bytes in addition to 1.1 times the weights
LIMIT_SHARES = {1: 1.0, 2: 0.6}  # each shard's share of the limit, by number of shards
SHARD_MODULE = b"shard.rpc.server"
CACHE_TOKENS = 4096
POLL_INTERVAL_SECONDS = 0.02  # seconds between two readings of the memory


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class StartupSettings(RandomModelSettings):
    num_shard: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1, 2)
    "Numbers of shards; one row for each."
    repeat: PositiveInt = 3
    "Number of starts: peaks are the maximum, times the median."


@dataclass(frozen=True, slots=True)
class StartupMemoryAndLatency:
    """Peak memory of each shard and seconds to the first token, over several starts of a server."""

    num_shard: int
    peak_gb: tuple[float, ...]  # anonymous memory of each shard, the largest first
    first_token_seconds: tuple[float, ...]  # from each start of `weft serve` to the first token

    @property
    def median_first_token_seconds(self) -> float:
        return statistics.median(self.first_token_seconds)


def measure(model_folder: Path, num_shard: int, num_starts: int) -> StartupMemoryAndLatency:
    starts = [measure_startup(model_folder, num_shard) for _ in range(num_starts)]
    peaks = tuple(map(max, zip(*(each for each, _ in starts), strict=True)))
    return StartupMemoryAndLatency(num_shard, peaks, tuple(sorted(seconds for _, seconds in starts)))


def measure_startup(model_folder: Path, num_shard: int) -> tuple[list[float], float]:
    """Start a server; return the peaks of its shards in GB, the largest first, and the seconds to the first token."""
    started_at = time.monotonic()
    server = subprocess.Popen([sys.executable, "-P", "-m", "launcher.cli", "serve", str(model_folder), "--port", "0",
                               "--num-shard", str(num_shard), "--max-batch-total-tokens", str(CACHE_TOKENS)],
                              stdout=subprocess.PIPE)
    peaks: dict[int, float] = {}
    try:
        port = read_port_and_sample_memory(server, peaks)
        body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 1}}
        request = Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(),
                          {"content-type": "application/json"})
        with urlopen(request) as answer:
            answer.read()
        first_token_seconds = time.monotonic() - started_at
        update_memory_peaks(server.pid, peaks)
    finally:
        server.terminate()
        server.wait()
    return sorted(peaks.values(), reverse=True), first_token_seconds


def read_port_and_sample_memory(server: "subprocess.Popen[bytes]", peaks: dict[int, float]) -> int:
    assert server.stdout is not None
    os.set_blocking(server.stdout.fileno(), False)
    text = b""
    while server.poll() is None:
        update_memory_peaks(server.pid, peaks)
        text += server.stdout.read() or b""
        if match := re.search(rb"http://[^ ]*:(\d+)", text):
            return int(match[1])
        time.sleep(POLL_INTERVAL_SECONDS)
    raise SystemExit("benchmarks.experiments.startup_time_and_memory: weft ended before it was ready")


def update_memory_peaks(launcher_pid: int, peaks: dict[int, float]) -> None:
    """Update the peak anonymous memory of each shard among the launcher's children.

    A thread or child that ends meanwhile cuts this reading short; the next one covers the others."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for children in Path(f"/proc/{launcher_pid}/task").glob("*/children"):
            for child in children.read_text().split():
                if SHARD_MODULE in Path(f"/proc/{child}/cmdline").read_bytes():
                    match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{child}/status").read_text())
                    if match:
                        peaks[int(child)] = max(peaks.get(int(child), 0.0), int(match[1]) * 1024 / 1e9)


def compute_memory_goal_gb(model_config: dict[str, Any], itemsize: int, num_shard: int) -> float | None:
    """Return the limit per shard in GB, or None if there is no limit for this number of shards.

    The limit is 1.1 times the weights with the packed copy of a tied head, plus EXTRA_BYTES_ALLOWED."""
    if num_shard not in LIMIT_SHARES:
        return None
    weights = sum(prod(shape) for name, shape in iter_tensor_shapes(model_config) if name.endswith("_proj.weight"))
    weights += 2 * model_config["vocab_size"] * model_config["hidden_size"]
    return float(LIMIT_SHARES[num_shard] * (1.1 * itemsize * weights + EXTRA_BYTES_ALLOWED)) / 1e9


def bench(settings: StartupSettings = StartupSettings()) -> None:
    """Measure peak anonymous memory of the shards, and seconds to the first token."""
    with settings.provide_model() as (model_folder, _):
        for path in model_folder.iterdir():
            path.read_bytes()  # loads the files into the page cache
        points = [measure(model_folder, num_shard, settings.repeat) for num_shard in settings.num_shard]
    text = "\n".join(map(format_point, points))
    report_results(f"{settings.shape} memory", text, make_summary(settings, points), should_save=settings.save)


def format_point(point: StartupMemoryAndLatency) -> str:
    figures = ", ".join(f"{peak:.2f}" for peak in point.peak_gb)
    return (f"{point.num_shard} shards: {figures} GB of anonymous memory at the peak, first token "
            f"after {point.median_first_token_seconds:.1f} s ({point.first_token_seconds[0]:.1f} to "
            f"{point.first_token_seconds[-1]:.1f})")


def make_summary(settings: StartupSettings, points: Sequence[StartupMemoryAndLatency]) -> dict[str, Any]:
    return {
        "shape": settings.shape, "points": [
            {"num_shard": point.num_shard, "peak_gb": [round(peak, 3) for peak in point.peak_gb],
             "limit_gb_float32": compute_memory_goal_gb(MODEL_CONFIGS[settings.shape], 4, point.num_shard),
             "first_token_s": [round(seconds, 2) for seconds in point.first_token_seconds]} for point in points]}


if __name__ == "__main__":
    run_experiment(bench)
