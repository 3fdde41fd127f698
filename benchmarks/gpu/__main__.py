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
from cyclopts.validators import Number

from benchmarks.gpu.measurements import LARGEST, SERVED_GOALS, compared, decode_rows, prompt_rows, rounded
from benchmarks.gpu.page import tell
from benchmarks.gpu.roofline import rates
from benchmarks.gpu.throughput import Lengths, Where, apart, by_shard, by_transformers, drawn, over_http
from benchmarks.harness.checkpoints import LLAMAS, make
from benchmarks.harness.processes import NotStarted

AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]
Numbers = Annotated[tuple[AtLeastOne, ...], Parameter(consume_multiple=True)]
Shape = Literal[LLAMAS]  # type: ignore[valid-type]  # a computed Literal
Found = TypeVar("Found")
Shapes = Annotated[tuple[Shape, ...], Parameter(consume_multiple=True)]


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "Where, as in `weft serve`."
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    "Number type, as in `weft serve`."
    folder: str = ""
    "Where random models are kept for the next time; by default they are made anew and thrown away."
    save: str = ""
    "A folder such as benchmarks/results, where what is found is added to the page of this day and card."

    @property
    def kind(self) -> str:
        return self.device if self.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    @contextmanager
    def models(self) -> Iterator[Callable[[str], Where]]:
        """Yield a function that returns the model of a shape; the models exist as long as the block runs."""
        with tempfile.TemporaryDirectory() as temporary:
            yield lambda shape: Where(str(make(shape, Path(self.folder or temporary) / shape)), self.kind, self.dtype)


DEFAULT = Settings()
app = App("benchmarks.gpu", help="How near weft comes to what a card can do.", version_flags=[])


@app.command
def decode(*, shapes: Shapes = ("qwen2.5-0.5b", "llama-3.2-1b", LARGEST), batch: Numbers = (1, 8, 32, 128, 256),
           context: Numbers = (512, 2048), cuda_graphs: Annotated[bool, Parameter(negative="--no-cuda-graphs")] = True,
           exact: Annotated[bool, Parameter(negative="")] = False, repeat: AtLeastOne = 5,
           settings: Settings = DEFAULT) -> None:
    """Measure decode steps in milliseconds, and compare them with the card's roofline."""
    card = apart(rates, settings.kind, settings.dtype)
    with settings.models() as model_of:
        for shape in shapes:
            rows = apart(decode_rows, shape, model_of(shape), card, [*product(context, batch)], repeat,
                         cuda_graphs=cuda_graphs, exact=exact)
            tell(f"Decode steps, {shape}{', --exact' * exact}", rows, settings.kind, settings.save, card.told())


@app.command
def prompts(*, shapes: Shapes = (LARGEST,), length: Numbers = (512, 2048, 8192), repeat: AtLeastOne = 5,
            settings: Settings = DEFAULT) -> None:
    """Measure the prefill of prompts in milliseconds, and compare its rate with that of large matmuls."""
    card = apart(rates, settings.kind, settings.dtype)
    with settings.models() as model_of:
        for shape in shapes:
            rows = apart(prompt_rows, shape, model_of(shape), card, length, repeat)
            tell(f"Prompts, {shape}", rows, settings.kind, settings.save, card.told())


@app.command
def served(*, shape: Shape = LARGEST, streams: AtLeastOne = 64, prompt: AtLeastOne = 128, output: AtLeastOne = 256,
           repeat: AtLeastOne = 2, settings: Settings = DEFAULT) -> None:
    """Measure tokens per second over HTTP, and of the shard alone. All requests are sent at once."""
    length = Lengths(prompt, output)
    with settings.models() as model_of:
        model = model_of(shape)
        turns = [(told(over_http(model, [length] * streams)), told(apart(by_shard, model, streams, length)))
                 for _ in range(repeat)]
    row = {"model": shape, "streams": streams, "prompt": prompt, "output": output,
           **compared("HTTP", "shard alone", turns), "goal": rounded(SERVED_GOALS.get((shape, streams)))}
    tell("Over HTTP, beside the shard alone", [row], settings.kind, settings.save)


@app.command
def beside(*, shape: Shape = LARGEST, requests: AtLeastOne = 256, shortest: AtLeastOne = 100,
           longest: AtLeastOne = 1024, repeat: AtLeastOne = 2, settings: Settings = DEFAULT) -> None:
    """Measure tokens per second over HTTP, and of `transformers` with continuous batching on the same card.

    All requests are sent at once; lengths of prompts and answers are uniform between the shortest and the longest."""
    work = drawn(requests, shortest, longest)
    with settings.models() as model_of:
        model = model_of(shape)
        turns = [(told(over_http(model, work)), *told(apart(by_transformers, model, work))) for _ in range(repeat)]
    row = {"model": shape, "requests": requests, "lengths": f"{shortest}-{longest}",
           **compared("weft over HTTP", "transformers", [(ours, theirs) for ours, theirs, _ in turns]),
           "its attention": turns[0][-1]}
    tell(f"Beside transformers {version('transformers')}", [row], settings.kind, settings.save)


def told(found: Found) -> Found:
    """Print a figure as soon as it is measured, and return it."""
    print(f"tokens/s: {found}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    try:
        app()
    except (ValueError, OSError, NotStarted) as error:
        raise SystemExit(f"benchmarks.gpu: {error}") from None


if __name__ == "__main__":
    main()
