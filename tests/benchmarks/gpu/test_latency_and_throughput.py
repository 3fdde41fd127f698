"""Tests of leaving out what does not fit into memory."""

import pytest
from support.checkpoints.small_checkpoints import make_tiny_checkpoint

from benchmarks.gpu.latency_and_throughput import select_points_fitting_memory
from benchmarks.harness.random_step_inputs import BLOCK_SIZE
from shard.config import ShardConfig
from shard.hardware.cache_budget import CacheBudget
from shard.workers.model_loading import LoadedDecoder, load_decoder_model


@pytest.fixture
def loaded_model(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> LoadedDecoder:
    """Return a model with room for three blocks."""
    monkeypatch.setattr(LoadedDecoder, "compute_cache_budget",
                        lambda self: CacheBudget(3 * self.bytes_per_block(BLOCK_SIZE), "as the test says"))
    return load_decoder_model(ShardConfig(model=str(make_tiny_checkpoint(tmp_path_factory.getbasetemp())), threads=1))


def test_points_without_room_for_their_cache_are_left_out(loaded_model: LoadedDecoder,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    points = [(2 * BLOCK_SIZE, 1), (BLOCK_SIZE, 3), (2 * BLOCK_SIZE, 2)]
    assert select_points_fitting_memory(loaded_model, points) == points[:2]
    assert "left out: 2 sequences of 32 tokens need a cache of" in capsys.readouterr().err


def test_no_point_that_fits_is_an_error(loaded_model: LoadedDecoder) -> None:
    with pytest.raises(ValueError, match="no room for any of these batches"):
        select_points_fitting_memory(loaded_model, [(BLOCK_SIZE, 4)])
