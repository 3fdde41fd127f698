from pathlib import Path

import pytest

from benchmarks.study.shapes import (
    COMES_WITH_WEFT,
    EIGHT_SECONDS,
    MEAN_LENGTH,
    SOLO_SECONDS,
    shape_of,
    simulated,
)
from benchmarks.study.workloads import FIGURE_LENGTHS
from shard.config import SimulatedConfig


def pass_seconds(config: SimulatedConfig, rows: int) -> float:
    return config.seconds_per_step + rows * MEAN_LENGTH * config.seconds_per_chunk_token


def test_the_simulated_passes_take_what_the_study_measured() -> None:
    config = SimulatedConfig(**simulated(1.0).shard["simulated"])
    assert pass_seconds(config, 1) == pytest.approx(SOLO_SECONDS)
    assert pass_seconds(config, 8) == pytest.approx(EIGHT_SECONDS)


def test_the_studys_requests_are_as_long_as_is_said() -> None:
    """Check the mean length over all passes, with one token per letter of the prompt."""
    passes = [len("Request 12") + said for length in FIGURE_LENGTHS for said in range(length)]
    assert sum(passes) / len(passes) == pytest.approx(MEAN_LENGTH, abs=0.5)


def test_a_pace_makes_everything_faster() -> None:
    config = SimulatedConfig(**simulated(4.0).shard["simulated"])
    assert pass_seconds(config, 1) == pytest.approx(SOLO_SECONDS / 4)


def test_a_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo", "config.json").write_text("{}")
    shape = shape_of("demo", tmp_path, Path("demo"), 1.0)
    assert shape.folder == str(tmp_path / "demo")
    assert shape_of("simulated", tmp_path, tmp_path, 1.0).folder == ""


def test_the_model_that_comes_with_weft_is_known(tmp_path: Path) -> None:
    assert shape_of("demo", tmp_path, COMES_WITH_WEFT, 1.0).folder == str(COMES_WITH_WEFT)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"there is no model in {tmp_path}"):
        shape_of("demo", tmp_path, tmp_path, 1.0)
