"""Tests of the benchmark of the decode step on a small model."""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from benchmarks.experiments.decode_step_beyond_matmuls import (
    DecodeStepSettings,
    format_table,
    make_matmul_runner,
    make_summary,
    measure,
    prepare_decode_step,
)
from shard.config import ShardConfig
from shard.workers.model_loading import LoadedDecoder, load_decoder_model


@pytest.fixture(scope="module")
def loaded_model(tmp_path_factory: pytest.TempPathFactory) -> LoadedDecoder:
    return load_decoder_model(ShardConfig(model=str(make_tiny_checkpoint(tmp_path_factory.getbasetemp())), threads=1))


def test_every_sequence_decodes_in_its_own_blocks(loaded_model: LoadedDecoder) -> None:
    cache, step = prepare_decode_step(loaded_model, 3, 40)
    assert [sequence.blocks for sequence in step.decodes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert cache.zero_block == 9
    assert set(loaded_model.runner.run(step, cache).by_sequence) == {0, 1, 2}


def test_all_linear_products_run(loaded_model: LoadedDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(len(layer.linears) for layer in loaded_model.model.layers) == 4 * loaded_model.config.num_layers
    make_matmul_runner(loaded_model, 1)()


def test_results_are_a_table_and_a_summary(loaded_model: LoadedDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up, first, second = (9.0, 9.0), (0.5, 0.25), (0.5, 0.375)  # seconds of a step, and of its products
    seconds = itertools.cycle([*warm_up, *warm_up, *first, *second])

    def fake_timed(run: Callable[[], None]) -> float:
        run()
        return next(seconds)

    monkeypatch.setattr("benchmarks.experiments.decode_step_beyond_matmuls.measure_seconds", fake_timed)
    settings = DecodeStepSettings(batch=(1, 4), context=40, repeat=2)
    points = [measure(loaded_model, settings, batch) for batch in settings.batch]
    assert [line.split()[0] for line in format_table(points).splitlines()] == ["batch", "1", "4"]
    summary = json.loads(json.dumps(make_summary(settings, loaded_model, points)))
    assert [point["batch"] for point in summary["points"]] == [1, 4]
    assert [asdict(point) for point in points] == [
        {"batch": batch, "step_ms": 500.0, "products_ms": 312.5, "share": 0.625, "least_share": 0.5, "most_share": 0.75,
         "operations": ""} for batch in settings.batch]
