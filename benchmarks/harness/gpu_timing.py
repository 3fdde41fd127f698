"""Timing of work that may be queued on a GPU."""

from collections.abc import Callable
from time import perf_counter

import torch


def measure_seconds(run: Callable[[], object]) -> float:
    """Return the seconds that `run` takes, including the work that it queues on the GPU."""
    started_at = perf_counter()
    run()
    synchronize_gpu()
    return perf_counter() - started_at


def synchronize_gpu() -> None:
    """Wait until the GPU has finished all queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
