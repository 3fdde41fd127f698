"""Benchmarks of weft against a GPU's roofline, and against `transformers`. Each command prints a section of a page.

`python -P -m benchmarks.gpu --help` lists the commands. Each section is followed by the same as one line of JSON.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import torch
from cyclopts import App, Parameter

from benchmarks.gpu.burst_throughput import (
    ModelLoadOptions,
    RequestLengths,
    compare_throughputs,
    draw_request_lengths,
    measure_http_throughput,
    measure_shard_throughput,
    measure_transformers_throughput,
    run_in_new_process,
)
from benchmarks.gpu.latency_and_throughput import (
    HTTP_THROUGHPUT_GOALS,
    LARGEST_SHAPE,
    measure_decode_latencies,
    measure_prefill_latencies,
    round_or_blank,
)
from benchmarks.gpu.report import print_and_save_section
from benchmarks.gpu.roofline import measure_device_rates
from benchmarks.harness.experiment import PositiveInt, PositiveInts
from benchmarks.harness.processes import ProcessStartError
from benchmarks.harness.random_checkpoints import LLAMA_SHAPES, make_random_checkpoint

ShapeName = Literal[LLAMA_SHAPES]  # type: ignore[valid-type]  # a computed Literal
Figure = TypeVar("Figure")
ShapeNames = Annotated[tuple[ShapeName, ...], Parameter(consume_multiple=True)]


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBenchmarkSettings:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where, as in `weft serve`."
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    "Number type, as in `weft serve`."
    folder: str = ""
    "Where random models are kept for the next time; by default they are made anew and thrown away."
    save: str = ""
    "A folder such as benchmarks/results, where what is found is added to the page of this day and card."

    @property
    def device_type(self) -> str:
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    @contextmanager
    def provide_models(self) -> Iterator[Callable[[str], ModelLoadOptions]]:
        """Yield a function that returns the model of a shape; the models exist as long as the block runs."""
        with tempfile.TemporaryDirectory() as temporary:
            yield lambda shape: ModelLoadOptions(str(make_random_checkpoint(shape, Path(self.folder or temporary)
                                                                            / shape)), self.device_type, self.dtype)


DEFAULT_SETTINGS = GpuBenchmarkSettings()
app = App("benchmarks.gpu", help="How near weft comes to what a card can do.", version_flags=[])


@app.command(name="decode")
def bench_decode(*, shapes: ShapeNames = ("qwen2.5-0.5b", "llama-3.2-1b", LARGEST_SHAPE),
                 batch: PositiveInts = (1, 8, 32, 128, 256), context: PositiveInts = (512, 2048),
                 cuda_graphs: Annotated[bool, Parameter(negative="--no-cuda-graphs")] = True,
                 exact: Annotated[bool, Parameter(negative="")] = False, repeat: PositiveInt = 5,
                 settings: GpuBenchmarkSettings = DEFAULT_SETTINGS) -> None:
    """Measure decode steps in milliseconds, and compare them with the card's roofline."""
    device_rates = run_in_new_process(measure_device_rates, settings.device_type, settings.dtype)
    with settings.provide_models() as make_model:
        for shape in shapes:
            rows = run_in_new_process(measure_decode_latencies, shape, make_model(shape), device_rates,
                                      [*product(context, batch)], repeat, cuda_graphs=cuda_graphs, exact=exact)
            print_and_save_section(f"Decode steps, {shape}{', --exact' * exact}", rows, settings.device_type,
                                   settings.save, device_rates.describe())


@app.command(name="prompts")
def bench_prefill(*, shapes: ShapeNames = (LARGEST_SHAPE,), length: PositiveInts = (512, 2048, 8192),
                  repeat: PositiveInt = 5, settings: GpuBenchmarkSettings = DEFAULT_SETTINGS) -> None:
    """Measure the prefill of prompts in milliseconds, and compare its rate with that of large matmuls."""
    device_rates = run_in_new_process(measure_device_rates, settings.device_type, settings.dtype)
    with settings.provide_models() as make_model:
        for shape in shapes:
            rows = run_in_new_process(measure_prefill_latencies, shape, make_model(shape), device_rates, length, repeat)
            print_and_save_section(f"Prompts, {shape}", rows, settings.device_type, settings.save,
                                   device_rates.describe())


@app.command(name="served")
def bench_http_throughput(*, shape: ShapeName = LARGEST_SHAPE, streams: PositiveInt = 64, prompt: PositiveInt = 128,
                          output: PositiveInt = 256, repeat: PositiveInt = 2,
                          settings: GpuBenchmarkSettings = DEFAULT_SETTINGS) -> None:
    """Measure tokens per second over HTTP, and of the shard alone. All requests are sent at once."""
    length = RequestLengths(prompt, output)
    with settings.provide_models() as make_model:
        model = make_model(shape)
        throughput_pairs = [(print_throughput(measure_http_throughput(model, [length] * streams)),
                             print_throughput(run_in_new_process(measure_shard_throughput, model, streams, length)))
                            for _ in range(repeat)]
    row = {"model": shape, "streams": streams, "prompt": prompt, "output": output,
           **compare_throughputs("HTTP", "shard alone", throughput_pairs),
           "goal": round_or_blank(HTTP_THROUGHPUT_GOALS.get((shape, streams)))}
    print_and_save_section("Over HTTP, beside the shard alone", [row], settings.device_type, settings.save)


@app.command(name="beside")
def bench_against_transformers(*, shape: ShapeName = LARGEST_SHAPE, requests: PositiveInt = 256,
                               shortest: PositiveInt = 100, longest: PositiveInt = 1024, repeat: PositiveInt = 2,
                               settings: GpuBenchmarkSettings = DEFAULT_SETTINGS) -> None:
    """Measure tokens per second over HTTP, and of `transformers` with continuous batching on the same card.

    All requests are sent at once; lengths of prompts and answers are uniform between the shortest and the longest."""
    request_lengths = draw_request_lengths(requests, shortest, longest)
    with settings.provide_models() as make_model:
        model = make_model(shape)
        turns = [(print_throughput(measure_http_throughput(model, request_lengths)),
                  *print_throughput(run_in_new_process(measure_transformers_throughput, model, request_lengths)))
                 for _ in range(repeat)]
    row = {"model": shape, "requests": requests, "lengths": f"{shortest}-{longest}",
           **compare_throughputs("weft over HTTP", "transformers",
                                 [(weft_rate, transformers_rate) for weft_rate, transformers_rate, _ in turns]),
           "its attention": turns[0][-1]}
    print_and_save_section(f"Beside transformers {version('transformers')}", [row], settings.device_type, settings.save)


def print_throughput(figure: Figure) -> Figure:
    """Print a figure as soon as it is measured, and return it."""
    print(f"tokens/s: {figure}", file=sys.stderr, flush=True)
    return figure


def main() -> None:
    try:
        app()
    except (ValueError, OSError, ProcessStartError) as error:
        raise SystemExit(f"benchmarks.gpu: {error}") from None


if __name__ == "__main__":
    main()
