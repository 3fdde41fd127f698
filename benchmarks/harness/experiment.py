"""Common parts of experiments: settings, the random model, the command line, points with their medians and tables."""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number

from benchmarks.harness.processes import ProcessStartError
from benchmarks.harness.random_checkpoints import LLAMA_SHAPES, make_random_checkpoint

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

PositiveInt = Annotated[int, Parameter(validator=Number(gte=1))]
PositiveInts = Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))]
PositiveFloat = Annotated[float, Parameter(validator=Number(gt=0))]
NonNegativeFloat = Annotated[float, Parameter(validator=Number(gte=0))]
TableColumns = Sequence[tuple[str, str]]  # name of each column, and the format of its cells
Point = TypeVar("Point", bound="DataclassInstance")


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """Settings of every experiment."""

    save: bool = False
    "Save the output under benchmarks/results."


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomModelSettings(ExperimentSettings):
    """Settings of an experiment with a random model in a published shape."""

    shape: Literal[LLAMA_SHAPES] = "qwen2.5-0.5b"  # type: ignore[valid-type]  # a computed Literal
    "Shape of the random model."
    folder: str = ""
    "Folder that keeps random models and adapters for later runs. Default: they are temporary."

    @contextmanager
    def provide_model(self) -> Iterator[tuple[Path, Path]]:
        """Yield the folder of the model, and the one that it is in; a temporary one is deleted after the block."""
        with tempfile.TemporaryDirectory() as temporary:
            root = Path(self.folder or temporary)
            yield make_random_checkpoint(self.shape, root / self.shape), root


def run_experiment(bench: Callable[..., None]) -> None:
    """Run an experiment by its command line; an error is one line on stderr."""
    app = App()
    app.default(bench)
    try:
        app(sys.argv[1:])
    except (ValueError, OSError, ProcessStartError) as error:
        spec = sys.modules["__main__"].__spec__
        raise SystemExit(f"{spec.name if spec else sys.argv[0]}: {error}") from None


def median_point(points: Sequence[Point]) -> Point:
    """Return a point with the median of every field; a field that all points share is kept as it is."""
    values_by_field = {item.name: [getattr(one, item.name) for one in points] for item in fields(points[0])}
    return replace(points[0], **{name: statistics.median(values) for name, values in values_by_field.items()
                                 if len(set(values)) > 1})


def format_columns(columns: TableColumns, rows: Iterable[Sequence[Any]], width: int = 10) -> str:
    """Return a text table with columns of equal width. Cells are formatted from the values of their row."""
    lines = [[name for name, _ in columns], *([form.format(*row) for _, form in columns] for row in rows)]
    return "\n".join(" ".join(cell.rjust(width) for cell in cells) for cells in lines)
