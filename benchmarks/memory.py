"""What a shard takes: peak anonymous memory and the time to its first token, for random numbers in a real shape.

Runs `weft serve` as users do. `python -P -m benchmarks.memory --help` tells the settings. The last line is JSON.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.request import Request, urlopen

import cyclopts
from cyclopts import Parameter

from benchmarks.checkpoint import SHAPES, make
from benchmarks.processes import hardware

ALLOWED = 0.5e9  # bytes beside 1.1 times the weights
SHARD = b"shard.server"
CACHE_TOKENS = 4096
INTERVAL = 0.02  # seconds between two looks


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    shape: Literal[tuple(SHAPES)] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # as many as there are
    "Which model's sizes."
    num_shard: Annotated[tuple[int, ...], Parameter(consume_multiple=True)] = (1, 2)
    "Shards that share the model; one point for each number."
    folder: str = ""
    "Where the random model is kept for the next time; by default it is made anew and thrown away."


@dataclass(frozen=True, slots=True)
class Point:
    num_shard: int
    peak_gb: tuple[float, ...]  # anonymous memory of each shard
    first_token_s: float  # from the start of `weft serve` to the answer


def measure(folder: Path, num_shard: int) -> Point:
    began = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.cli", "serve", str(folder), "--port", "0", "--num-shard", str(num_shard),
         "--max-batch-total-tokens", str(CACHE_TOKENS)], stdout=subprocess.PIPE)
    peaks: dict[int, float] = {}
    try:
        port = wait_for_port(server, peaks)
        body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 1}}
        request = Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(),
                          {"content-type": "application/json"})
        with urlopen(request) as answer:
            answer.read()
        taken = time.monotonic() - began
        look(server.pid, peaks)
    finally:
        server.terminate()
        server.wait()
    return Point(num_shard, tuple(sorted(peaks.values(), reverse=True)), taken)


def wait_for_port(server: "subprocess.Popen[bytes]", peaks: dict[int, float]) -> int:
    assert server.stdout is not None
    os.set_blocking(server.stdout.fileno(), False)
    text = b""
    while server.poll() is None:
        look(server.pid, peaks)
        text += server.stdout.read() or b""
        if found := re.search(rb"http://[^ ]*:(\d+)", text):
            return int(found[1])
        time.sleep(INTERVAL)
    raise SystemExit("benchmarks.memory: weft ended before it was ready")


def look(launcher: int, peaks: dict[int, float]) -> None:
    """The shards among the launcher's children, and the most that each was seen with."""
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        for child in children.read_text().split():
            if SHARD in Path(f"/proc/{child}/cmdline").read_bytes():
                found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{child}/status").read_text())
                if found:
                    peaks[int(child)] = max(peaks.get(int(child), 0.0), int(found[1]) * 1024 / 1e9)


def allowed(shape: dict[str, Any], itemsize: int) -> float:
    """1.1 times the weights and the packed copy of a tied head, and half a gigabyte."""
    hidden, inner, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    head_dim = shape.get("head_dim", hidden // shape["num_attention_heads"])
    projections = 2 * hidden * head_dim * (shape["num_attention_heads"] + shape["num_key_value_heads"])
    weights = shape["num_hidden_layers"] * (projections + 3 * hidden * inner) + 2 * vocabulary * hidden
    return float(1.1 * itemsize * weights + ALLOWED) / 1e9


def bench(settings: Settings = Settings()) -> None:
    """Peak anonymous memory of the shards, and seconds to the first token."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = make(settings.shape, Path(settings.folder or temporary) / settings.shape)
        for path in folder.iterdir():
            path.read_bytes()  # so that the system has the files in memory
        points = [measure(folder, num_shard) for num_shard in settings.num_shard]
    limit = allowed(SHAPES[settings.shape], 4)
    for point in points:
        figures = ", ".join(f"{peak:.2f}" for peak in point.peak_gb)
        print(f"{point.num_shard} shards: {figures} GB of anonymous memory at the peak, first token after "
              f"{point.first_token_s:.1f} s")
    print(json.dumps({
        "shape": settings.shape, "date": datetime.now(UTC).date().isoformat(), "hardware": hardware(),
        "limit_gb_float32": round(limit, 3),
        "points": [{"num_shard": point.num_shard, "peak_gb": [round(peak, 3) for peak in point.peak_gb],
                    "first_token_s": round(point.first_token_s, 2)} for point in points]}))


def main() -> None:
    try:
        cyclopts.run(bench)
    except (ValueError, OSError) as error:
        raise SystemExit(f"benchmarks.memory: {error}") from None


if __name__ == "__main__":
    main()
