from pathlib import Path

import pytest

from benchmarks.study.model_settings import (
    DEMO_MODEL_FOLDER,
    EIGHT_REQUESTS_PASS_SECONDS,
    MEAN_PASS_TOKENS,
    SOLO_PASS_SECONDS,
    make_simulated_model,
    resolve_study_model,
)
from benchmarks.study.workloads import FIGURE_OUTPUT_LENGTHS
from shard.config import SimulatedConfig


def compute_pass_seconds(config: SimulatedConfig, rows: int) -> float:
    return config.seconds_per_step + rows * MEAN_PASS_TOKENS * config.seconds_per_chunk_token


def test_simulated_passes_take_the_time_of_the_study() -> None:
    config = SimulatedConfig(**make_simulated_model(1.0).shard_settings["simulated"])
    assert compute_pass_seconds(config, 1) == pytest.approx(SOLO_PASS_SECONDS)
    assert compute_pass_seconds(config, 8) == pytest.approx(EIGHT_REQUESTS_PASS_SECONDS)


def test_mean_length_is_that_of_the_study() -> None:
    """Check the mean length over all passes, with one token per letter of the prompt."""
    passes = [len("Request 12") + num_generated for length in FIGURE_OUTPUT_LENGTHS for num_generated in range(length)]
    assert sum(passes) / len(passes) == pytest.approx(MEAN_PASS_TOKENS, abs=0.5)


def test_pace_scales_all_times() -> None:
    config = SimulatedConfig(**make_simulated_model(4.0).shard_settings["simulated"])
    assert compute_pass_seconds(config, 1) == pytest.approx(SOLO_PASS_SECONDS / 4)


def test_model_folder_is_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()
    Path("demo", "config.json").write_text("{}")
    shape = resolve_study_model("demo", tmp_path, Path("demo"), 1.0)
    assert shape.model_folder == str(tmp_path / "demo")
    assert resolve_study_model("simulated", tmp_path, tmp_path, 1.0).model_folder == ""


def test_built_in_model_is_known(tmp_path: Path) -> None:
    assert resolve_study_model("demo", tmp_path, DEMO_MODEL_FOLDER, 1.0).model_folder == str(DEMO_MODEL_FOLDER)


def test_folder_without_a_model_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"there is no model in {tmp_path}"):
        resolve_study_model("demo", tmp_path, tmp_path, 1.0)
