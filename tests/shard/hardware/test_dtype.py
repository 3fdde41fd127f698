from collections.abc import Callable
from functools import partial

import pytest
import torch

from shard.config import DTYPES as NAMES
from shard.hardware.dtype import DTYPE_BY_NAME, agree_on_dtype, choose_dtype, measure_fastest_dtype
from shard.parallel.group import SingleRankGroup

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def fail_if_measured() -> torch.dtype:
    pytest.fail("there was nothing to find out")


@pytest.mark.parametrize("stored", [FP32, BF16, FP16], ids=str)
def test_gpu_uses_the_dtype_of_the_checkpoint(stored: torch.dtype) -> None:
    assert choose_dtype("auto", stored, "cuda", fail_if_measured).dtype == stored


@pytest.mark.parametrize("requested", ["float32", "bfloat16", "float16"])
def test_gpu_uses_the_requested_dtype(requested: str) -> None:
    assert choose_dtype(requested, BF16, "cuda", fail_if_measured).dtype == DTYPE_BY_NAME[requested]


@pytest.mark.parametrize(("requested", "stored", "chosen"), [
    ("auto", FP32, FP32), ("float32", BF16, FP32), ("float32", FP16, FP32), ("bfloat16", FP32, BF16),
    ("bfloat16", FP16, BF16)], ids=str)
def test_cpu_does_not_measure_when_the_dtype_is_clear(requested: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    assert choose_dtype(requested, stored, "cpu", fail_if_measured).dtype == chosen


@pytest.mark.parametrize("faster", [FP32, BF16], ids=str)
def test_cpu_runs_bfloat16_checkpoints_in_the_faster_dtype(faster: torch.dtype) -> None:
    choice = choose_dtype("auto", BF16, "cpu", lambda: faster)
    assert (choice.dtype, choice.user_note) == (faster, "")


@pytest.mark.parametrize(("requested", "stored"), [("auto", FP16), ("float16", BF16), ("float16", FP32)])
def test_float16_on_a_cpu_is_replaced_with_a_note_to_users(requested: str, stored: torch.dtype) -> None:
    choice = choose_dtype(requested, stored, "cpu", lambda: BF16)
    assert choice.dtype == BF16
    assert choice.user_note == "float16 is slow on CPUs; the model runs in bfloat16"


class FakeMatmulClock:
    """Fake clock that its products advance by the given seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds_by_dtype: list[float]) -> None:
        self.now, self.seconds_by_dtype = 0.0, seconds_by_dtype
        monkeypatch.setattr("shard.hardware.dtype.perf_counter", lambda: self.now)

    def make_matmul(self, dtype: torch.dtype) -> Callable[[], None]:
        def advance_clock() -> None:
            self.now += times.pop(0)
        times = self.seconds_by_dtype[str(dtype).removeprefix("torch.")]
        return advance_clock


def test_fastest_dtype_has_the_lowest_minimum_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeMatmulClock(monkeypatch, bfloat16=[9, 9, 1, 9, 9], float32=[2, 2, 2, 2, 2])
    assert measure_fastest_dtype(lambda _: True, clock.make_matmul) == BF16
    clock = FakeMatmulClock(monkeypatch, bfloat16=[3, 3, 3, 3, 3], float32=[2, 4, 4, 4, 4])
    assert measure_fastest_dtype(lambda _: True, clock.make_matmul) == FP32


def test_dtype_that_cannot_be_packed_is_not_measured() -> None:
    assert measure_fastest_dtype(lambda dtype: dtype == FP32, partial(pytest.fail)) == FP32


class FakeRankGroup:
    """Group of two ranks; `other_rank_number` is the number that the other rank contributes."""

    def __init__(self, rank: int, other_rank_number: int) -> None:
        self.rank, self.size, self.other_rank_number = rank, 2, other_rank_number

    def all_reduce_min(self, number: int) -> int:
        return min(number, self.other_rank_number)


def test_measured_dtype_is_cached() -> None:
    probe_cache = FakeProbeCache()
    assert agree_on_dtype(SingleRankGroup(), probe_cache, "here", lambda: BF16) == BF16
    assert agree_on_dtype(SingleRankGroup(), probe_cache, "here", fail_if_measured) == BF16
    assert agree_on_dtype(SingleRankGroup(), probe_cache, "elsewhere", lambda: FP32) == FP32


def test_other_ranks_use_the_dtype_of_rank_0() -> None:
    probe_cache = FakeProbeCache()
    assert agree_on_dtype(FakeRankGroup(0, len(DTYPE_BY_NAME)), probe_cache, "here", lambda: BF16) == BF16
    assert agree_on_dtype(FakeRankGroup(1, list(DTYPE_BY_NAME).index("bfloat16")), FakeProbeCache(), "here",
                          fail_if_measured) == BF16


def test_invalid_cached_dtype_is_replaced() -> None:
    probe_cache = FakeProbeCache()
    probe_cache.put("here", "int3")
    assert agree_on_dtype(SingleRankGroup(), probe_cache, "here", lambda: FP32) == FP32
    assert probe_cache.get("here") == "float32"


class FakeProbeCache(dict[str, str]):
    put = dict.__setitem__


def test_every_dtype_is_a_config_choice() -> None:
    assert ("auto", *DTYPE_BY_NAME) == NAMES
