"""Tests of what experiments share."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness.experiment import RandomModelSettings, format_columns, median_point, run_experiment


@dataclass(frozen=True, slots=True)
class ExamplePoint:
    """A point of two figures."""

    streams: int
    seconds: float


def test_median_keeps_what_all_points_share() -> None:
    point = median_point([ExamplePoint(4, 1.0), ExamplePoint(4, 2.0)])
    assert (point, type(point.streams)) == (ExamplePoint(4, 1.5), int)


def test_columns_are_equally_wide() -> None:
    columns = (("streams", "{0.streams}"), ("share %", "{1:.1f}"))
    assert format_columns(columns, [(ExamplePoint(8, 1.0), 12.34)], width=8) == " streams  share %\n       8     12.3"


def test_kept_model_is_used_again(tmp_path: Path) -> None:
    settings = RandomModelSettings(shape="tiny", folder=str(tmp_path))
    with settings.provide_model() as (model, root):
        assert (model, root) == (tmp_path / "tiny", tmp_path)
        created_at = (model / "model.safetensors").stat().st_mtime_ns
    with settings.provide_model() as (model, _):
        assert (model / "model.safetensors").stat().st_mtime_ns == created_at


def test_error_is_one_line_with_the_name_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(*, seconds: float) -> None:
        raise ValueError(f"a turn of {seconds:g} s is too short")
    monkeypatch.setattr(sys, "argv", ["experiment", "--seconds", "2"])
    with pytest.raises(SystemExit, match=r": a turn of 2 s is too short$"):
        run_experiment(bench)
