"""The batching study: which requests should run together, and what that gains.

`python -P -m benchmarks.study batching --help` lists the settings; benchmarks/README.md has the results. The last line
is JSON.
"""

import json
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.harness.processes import NotStarted
from benchmarks.harness.results import file_name, made
from benchmarks.harness.steal_time import MOST
from benchmarks.study.experiments import Experiments, Failed
from benchmarks.study.figures import plain, summary
from benchmarks.study.plan import PARTS, Plan, Scope
from benchmarks.study.policies import CACHED, VARIANTS, WINDOWS
from benchmarks.study.records import Raw
from benchmarks.study.report import page, sources, table
from benchmarks.study.shapes import COMES_WITH_WEFT, NAMES, SIMULATED, shape_of
from benchmarks.study.workloads import PRESETS

MODELS = Path.home() / ".cache" / "weft" / "benchmarks"
QUICK = Scope(seeds=2, presets=("figure",), policies=("none", "mixed"), levels=(0.5, 4.0), variants=("batch-4",),
              users=(1, 8), requests=8, repeat=1, span=6.0)
QUICK_PACE = 20.0
DEFAULT = Scope()
Positive = Number(gt=0)


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    parts: Annotated[tuple[Literal[PARTS], ...], Parameter(consume_multiple=True)] = PARTS  # type: ignore[valid-type]
    "compat: as the effective-batching study has it; workload: its workloads with a cache; sweep: rates until policies \
are full; sweet: the same with other settings; users: how many are served at twice the latency of one alone."
    shapes: Annotated[tuple[Literal[NAMES], ...], Parameter(consume_multiple=True)] = (  # type: ignore[valid-type]
        SIMULATED,)
    "Whose sizes the models have; simulated: no model, with costs as on the GPU of the study."
    folder: Path | None = None
    "Folder for results, or with those of an interrupted study; by default a new one in results/ where it is called."
    seeds: Annotated[int, Parameter(validator=Number(gte=1))] = DEFAULT.seeds
    "How often everything is measured, each time with other requests."
    requests: Annotated[int, Parameter(validator=Number(gte=2))] = DEFAULT.requests
    "Of a run with a workload of the study."
    repeat: Annotated[int, Parameter(validator=Number(gte=1))] = DEFAULT.repeat
    "How often each length is asked for alone, to know how long it takes then."
    presets: Annotated[tuple[Literal[PRESETS], ...], Parameter(consume_multiple=True)] = PRESETS  # type: ignore[valid-type]
    "Workloads of the study, for --parts workload."
    policies: Annotated[tuple[Literal[CACHED], ...], Parameter(consume_multiple=True)] = CACHED  # type: ignore[valid-type]
    "What is compared beyond the study's own."
    windows: Annotated[tuple[float, ...], Parameter(consume_multiple=True, validator=Positive)] = WINDOWS
    "For how long static groups wait for more, in mean times of a request alone; one policy for each, beside no wait."
    levels: Annotated[tuple[float, ...], Parameter(consume_multiple=True, validator=Positive)] = DEFAULT.levels
    "Rates of --parts sweep, in those that a server can take that serves one at a time; sweet takes every second."
    variants: Annotated[tuple[Literal[VARIANTS], ...], Parameter(consume_multiple=True)] = (  # type: ignore[valid-type]
        VARIANTS)
    "Settings that --parts sweet changes."
    prompt: Annotated[int, Parameter(validator=Number(gte=8))] = DEFAULT.prompt
    "Letters of a prompt beyond the study's workloads. Models with random weights take each for a token."
    span: Annotated[float, Parameter(validator=Positive)] = DEFAULT.span
    "How long each rate lasts, in mean times of a request alone."
    users: Annotated[tuple[int, ...], Parameter(consume_multiple=True, validator=Number(gte=1))] = DEFAULT.users
    "How many ask at once for --parts users, beside one alone."
    max_batch_size: Annotated[int, Parameter(validator=Number(gte=2))] = DEFAULT.max_batch_size
    "Most that run at once, of all policies beyond the study's own."
    speed: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0
    "By how much faster than the study's its workloads come. 0: as much as the server is, so that the load is as \
heavy: for --parts compat by what eight at once are served, for workload by a request alone."
    pace: Annotated[float, Parameter(validator=Positive)] = 1.0
    "How many times faster than the study's GPU the simulated one is."
    stolen: Annotated[float, Parameter(validator=Number(gte=0))] = MOST
    "A run is repeated, some times, if the host of a virtual machine gave more than this share of the processors to \
others meanwhile; but not as the study has it, whose server counts what it hears."
    models: Path = MODELS
    "Where models with random weights are kept."
    demo: Path = COMES_WITH_WEFT
    "The folder of the model for --shapes demo; by default the one that comes with weft."
    quick: bool = False
    "A minute, only to see that it works: a few requests to a fast simulated shard."


def scope_of(settings: Settings) -> Scope:
    if settings.quick:
        usual = Settings()
        if given := [name for name in (*Scope.__slots__, "pace") if getattr(settings, name) != getattr(usual, name)]:
            raise ValueError(f"--quick sets how much is measured: leave out --{given[0].replace('_', '-')}")
        return QUICK
    return Scope(**{name: getattr(settings, name) for name in Scope.__slots__})


def folder_of(settings: Settings, this: dict[str, Any]) -> Path:
    name = file_name("batching", this["date"], this["hardware"])
    return (settings.folder or Path("results") / name).resolve()


def measure(settings: Settings, experiments: Experiments) -> None:
    pace = QUICK_PACE if settings.quick else settings.pace
    for name in settings.shapes:
        shape, scope = shape_of(name, settings.models, settings.demo, pace), scope_of(settings)
        plan = Plan(shape, scope, experiments.pace(Plan(shape, scope), settings.parts))
        for part in settings.parts:
            experiments.part(plan, part)


def tell(folder: Path, this: dict[str, Any]) -> dict[str, Any]:
    """Write summary, plots and page from all records in the folder, and print the tables.

    `this` is date, hardware, versions and command of the current run."""
    plots = import_module("benchmarks.study.plots")  # needs matplotlib, an extra
    takens = Raw(folder).all()
    told = summary(takens)
    paths = [path for shape, one in told["shapes"].items()
             for path in plots.draw(folder, shape, one, [taken for taken in takens if taken.run.shape == shape])]
    parts = [taken.made for taken in takens]
    whole = plain({**told, **this, "made": sources(parts)})
    (folder / "summary.json").write_text(json.dumps(whole, indent=1) + "\n")
    (folder / "README.md").write_text(page(told, parts, paths, folder))
    print(table(told))
    return told


def batching(settings: Settings = Settings()) -> None:
    """Compare batching policies, and write records, summary, tables and plots to a folder."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib; install it with: pip install 'weft[bench]'")
    this = made("weft study")
    folder = folder_of(settings, this)
    scope_of(settings)  # raises ValueError before anything is measured
    try:
        measure(settings, Experiments(folder, this, settings.stolen))
    except (Failed, NotStarted):  # report what was measured before
        if Raw(folder).all():
            tell(folder, this)
        raise
    told = tell(folder, this)
    first = {name: value for name, value in told.items() if name != "shapes"}
    print(json.dumps(plain({**first, "folder": str(folder)})))


def main() -> None:
    app = cyclopts.App(name="weft study", help="Comparisons that are measured from end to end.")
    app.command(batching)
    try:
        app(sys.argv[1:])
    except (ValueError, Failed, NotStarted) as error:
        raise SystemExit(f"benchmarks.study: {error}") from None


if __name__ == "__main__":
    main()
