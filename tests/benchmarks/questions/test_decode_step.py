"""Tests of the benchmark of the decode step on a small model."""

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
from support.small_checkpoints import tiny_checkpoint

from benchmarks.questions.decode_step import Settings, measure, prepared, products_of, summary, table
from shard.config import ShardConfig
from shard.workers.load_decoder import Loaded, load


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(ShardConfig(model=str(tiny_checkpoint(tmp_path_factory.getbasetemp())), threads=1))


def test_every_sequence_decodes_in_blocks_of_its_own(loaded: Loaded) -> None:
    cache, step = prepared(loaded, 3, 40)
    assert [sequence.blocks for sequence in step.decodes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert cache.zero_block == 9
    assert set(loaded.runner.run(step, cache).said) == {0, 1, 2}


def test_all_products_of_the_model_run(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(len(layer.products) for layer in loaded.model.layers) == 4 * loaded.config.num_layers
    products_of(loaded, 1)()


def test_what_it_says(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up, first, second = (9.0, 9.0), (0.5, 0.25), (0.5, 0.375)  # seconds of a step, and of its products
    seconds = itertools.cycle([*warm_up, *warm_up, *first, *second])

    def timed(run: Callable[[], None]) -> float:
        run()
        return next(seconds)

    monkeypatch.setattr("benchmarks.questions.decode_step.timed", timed)
    settings = Settings(batch=(1, 4), context=40, repeat=2)
    points = [measure(loaded, settings, batch) for batch in settings.batch]
    assert [line.split()[0] for line in table(points).splitlines()] == ["batch", "1", "4"]
    told = json.loads(json.dumps(summary(settings, loaded, points)))
    assert [point["batch"] for point in told["points"]] == [1, 4]
    assert [asdict(point) for point in points] == [
        {"batch": batch, "step_ms": 500.0, "products_ms": 312.5, "share": 0.625, "least_share": 0.5, "most_share": 0.75,
         "operations": ""} for batch in settings.batch]
