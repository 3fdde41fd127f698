from collections.abc import Callable
from functools import partial

import pytest
import torch

from shard.config import DTYPES as NAMES
from shard.host.dtype import DTYPES, choose_dtype, find_quickest, packed_product, settled
from shard.parallel.group import Alone

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def never() -> torch.dtype:
    pytest.fail("there was nothing to find out")


@pytest.mark.parametrize("stored", [FP32, BF16, FP16], ids=str)
def test_on_a_gpu_it_is_the_type_of_the_checkpoint(stored: torch.dtype) -> None:
    assert choose_dtype("auto", stored, "cuda", never).dtype == stored


@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16"])
def test_on_a_gpu_it_is_what_was_asked_for(asked: str) -> None:
    assert choose_dtype(asked, BF16, "cuda", never).dtype == DTYPES[asked]


@pytest.mark.parametrize(("asked", "stored", "chosen"), [
    ("auto", FP32, FP32), ("float32", BF16, FP32), ("float32", FP16, FP32), ("bfloat16", FP32, BF16),
    ("bfloat16", FP16, BF16)], ids=str)
def test_on_a_cpu_what_is_clear_is_not_measured(asked: str, stored: torch.dtype, chosen: torch.dtype) -> None:
    assert choose_dtype(asked, stored, "cpu", never).dtype == chosen


@pytest.mark.parametrize("faster", [FP32, BF16], ids=str)
def test_on_a_cpu_half_precision_runs_in_the_faster_type(faster: torch.dtype) -> None:
    precision = choose_dtype("auto", BF16, "cpu", lambda: faster)
    assert (precision.dtype, precision.note) == (faster, "")


@pytest.mark.parametrize(("asked", "stored"), [("auto", FP16), ("float16", BF16), ("float16", FP32)])
def test_float16_on_a_cpu_is_replaced_and_users_hear_of_it(asked: str, stored: torch.dtype) -> None:
    precision = choose_dtype(asked, stored, "cpu", lambda: BF16)
    assert precision.dtype == BF16
    assert precision.note == "float16 is slow on CPUs; the model runs in bfloat16"


class Clock:
    """Fake clock that its products advance by the given seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: list[float]) -> None:
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr("shard.host.dtype.perf_counter", lambda: self.now)

    def product(self, dtype: torch.dtype) -> Callable[[], None]:
        def run() -> None:
            self.now += times.pop(0)
        times = self.seconds[str(dtype).removeprefix("torch.")]
        return run


def test_the_faster_type_is_found_by_the_best_of_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, bfloat16=[9, 9, 1, 9, 9], float32=[2, 2, 2, 2, 2])
    assert find_quickest(lambda _: True, clock.product) == BF16
    clock = Clock(monkeypatch, bfloat16=[3, 3, 3, 3, 3], float32=[2, 4, 4, 4, 4])
    assert find_quickest(lambda _: True, clock.product) == FP32


def test_a_type_that_cannot_be_packed_is_not_tried() -> None:
    assert find_quickest(lambda dtype: dtype == FP32, partial(pytest.fail)) == FP32


def test_a_packed_product_can_be_timed_here() -> None:
    packed_product(FP32)()


class Rank:
    """Group of two ranks; `other` is the number that the other rank contributes."""

    def __init__(self, rank: int, other: int) -> None:
        self.rank, self.size, self.other = rank, 2, other

    def minimum(self, number: int) -> int:
        return min(number, self.other)


def test_what_was_found_once_is_found_again() -> None:
    memory = Notes()
    assert settled(Alone(), memory, "here", lambda: BF16) == BF16
    assert settled(Alone(), memory, "here", never) == BF16
    assert settled(Alone(), memory, "elsewhere", lambda: FP32) == FP32


def test_ranks_do_as_rank_0_does() -> None:
    memory = Notes()
    assert settled(Rank(0, len(DTYPES)), memory, "here", lambda: BF16) == BF16
    assert settled(Rank(1, list(DTYPES).index("bfloat16")), Notes(), "here", never) == BF16


def test_a_note_that_makes_no_sense_is_written_anew() -> None:
    memory = Notes()
    memory.put("here", "int3")
    assert settled(Alone(), memory, "here", lambda: FP32) == FP32
    assert memory.get("here") == "float32"


class Notes(dict[str, str]):
    put = dict.__setitem__


def test_every_type_can_be_asked_for() -> None:
    assert ("auto", *DTYPES) == NAMES
