"""The batching study: which requests should run together, and what that gains.

`python -P -m benchmarks.study batching --help` lists the settings; benchmarks/batching.md has the results. The last
line is JSON.
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

from benchmarks.harness.cpu_steal_retry import MAX_STEAL_SHARE
from benchmarks.harness.experiment import NonNegativeFloat, PositiveFloat
from benchmarks.harness.processes import ProcessStartError
from benchmarks.harness.reporting import collect_run_metadata, make_file_name
from benchmarks.study.model_settings import DEMO_MODEL_FOLDER, SHAPE_NAMES, SIMULATED, resolve_study_model
from benchmarks.study.plan import STUDY_PARTS, StudyPlan, StudyScope
from benchmarks.study.report import format_all_tables, format_plot_caption, format_readme, list_distinct_metadata
from benchmarks.study.run_record_store import RunRecordStore
from benchmarks.study.runner import AllRequestsFailed, StudyRunner
from benchmarks.study.study_summary import summarize_study, to_json_value

MODELS_FOLDER = Path.home() / ".cache" / "weft" / "benchmarks"
QUICK_SCOPE = StudyScope(seeds=2, presets=("figure",), policies=("none", "mixed"), levels=(0.5, 4.0),
                         variants=("batch-4",), users=(1, 8), requests=8, repeat=1, span=6.0)
QUICK_SIMULATION_SPEEDUP = 20.0
DEFAULT_SCOPE = StudyScope()


@Parameter(name="*", negative="")
@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings(StudyScope):
    parts: Annotated[tuple[Literal[STUDY_PARTS], ...], Parameter(consume_multiple=True)] = STUDY_PARTS  # type: ignore[valid-type]
    "Parts to measure. compat: the effective-batching study as published; workload: its workloads with a KV cache; \
sweep: rising request rates up to saturation; sweet: the same for other settings; users: how many users are served at \
twice the latency of a single one."
    shapes: Annotated[tuple[Literal[SHAPE_NAMES], ...], Parameter(consume_multiple=True)] = (  # type: ignore[valid-type]
        SIMULATED,)
    "Model shapes. simulated: no model, with step times as on the study's GPU."
    folder: Path | None = None
    "Folder for the results; that of an interrupted study is continued. Default: a new folder in results/ in the \
current folder."
    pace: PositiveFloat = 1.0
    "Speed of the simulated GPU, relative to the study's."
    stolen: NonNegativeFloat = MAX_STEAL_SHARE
    "Maximum steal time of a run, as a share of the processors. A run with more is repeated a few times, except in \
--parts compat, whose server counts its requests."
    models: Path = MODELS_FOLDER
    "Folder for the models with random weights."
    demo: Path = DEMO_MODEL_FOLDER
    "Folder of the model for --shapes demo. Default: the model that comes with weft."
    quick: bool = False
    "Test that everything works, in about a minute: a few requests to a fast simulated shard."


def make_scope(settings: StudySettings) -> StudyScope:
    if settings.quick:
        default_settings = StudySettings()
        if changed_names := [name for name in (*StudyScope.__slots__, "pace") if getattr(settings, name)
                             != getattr(default_settings, name)]:
            raise ValueError(f"--quick sets how much is measured: leave out --{changed_names[0].replace('_', '-')}")
        return QUICK_SCOPE
    return StudyScope(**{name: getattr(settings, name) for name in StudyScope.__slots__})


def choose_results_folder(settings: StudySettings, run_metadata: dict[str, Any]) -> Path:
    name = make_file_name("batching", run_metadata["date"], run_metadata["hardware"])
    return (settings.folder or Path("results") / name).resolve()


def measure_parts(settings: StudySettings, study_runner: StudyRunner) -> None:
    simulation_speedup = QUICK_SIMULATION_SPEEDUP if settings.quick else settings.pace
    for name in settings.shapes:
        study_model, scope = resolve_study_model(name, settings.models, settings.demo,
                                                 simulation_speedup), make_scope(settings)
        plan = StudyPlan(study_model, scope,
                         study_runner.measure_server_speed(StudyPlan(study_model, scope), settings.parts))
        for part in settings.parts:
            study_runner.measure_part(plan, part)


def write_report(folder: Path, run_metadata: dict[str, Any]) -> dict[str, Any]:
    """Write summary, plots and page from all records in the folder, and print the tables.

    `run_metadata` is date, hardware, versions and command of the current run."""
    plots = import_module("benchmarks.study.plots")  # needs matplotlib, an extra
    all_records = RunRecordStore(folder).read_all()
    study_figures = summarize_study(all_records)
    records_by_shape = {shape: [run_records for run_records in all_records if run_records.run.shape == shape]
                        for shape in study_figures["shapes"]}
    paths = [path for shape, one in study_figures["shapes"].items() for path in plots.draw_plots(
        folder, shape, one, records_by_shape[shape],
        format_plot_caption([run_records.metadata for run_records in records_by_shape[shape]]))]
    metadata_of_runs = [run_records.metadata for run_records in all_records]
    summary_json = to_json_value({**study_figures, **run_metadata, "made": list_distinct_metadata(metadata_of_runs)})
    (folder / "summary.json").write_text(json.dumps(summary_json, indent=1) + "\n")
    (folder / "README.md").write_text(format_readme(study_figures, metadata_of_runs, paths, folder))
    print(format_all_tables(study_figures))
    return study_figures


def run_batching_study(settings: StudySettings = StudySettings()) -> None:
    """Compare batching policies, and write records, summary, tables and plots to a folder."""
    if find_spec("matplotlib") is None:
        raise ValueError("plots need matplotlib; install it with: pip install 'weft[bench]'")
    run_metadata = collect_run_metadata("weft study")
    folder = choose_results_folder(settings, run_metadata)
    make_scope(settings)  # raises ValueError before anything is measured
    try:
        measure_parts(settings, StudyRunner(folder, run_metadata, settings.stolen))
    except (AllRequestsFailed, ProcessStartError):  # report what was measured before
        if RunRecordStore(folder).read_all():
            write_report(folder, run_metadata)
        raise
    study_figures = write_report(folder, run_metadata)
    main_figures = {name: value for name, value in study_figures.items() if name != "shapes"}
    print(json.dumps(to_json_value({**main_figures, "folder": str(folder)})))


def main() -> None:
    app = cyclopts.App(name="weft study", help="Comparisons that are measured from end to end.")
    app.command(run_batching_study, name="batching")
    try:
        app(sys.argv[1:])
    except ValueError as error:  # flags or files that must change
        print(f"benchmarks.study: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (AllRequestsFailed, ProcessStartError) as error:
        raise SystemExit(f"benchmarks.study: {error}") from None


if __name__ == "__main__":
    main()
