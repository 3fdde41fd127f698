import pytest
import torch
from torch import Tensor

from shard.quantization.format import Coded, Slice

CODES = torch.arange(-12, 12, dtype=torch.int8).view(6, 4)
SCALES = torch.arange(1.0, 13).view(6, 2)
GROUPS = torch.tensor([1, 0, 0, 1])


def some_codes(first: int, last: int) -> Tensor:
    return CODES[first:last]


@pytest.mark.parametrize("chunk", [1, 8, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_codes_times_their_groups_scales(
        monkeypatch: pytest.MonkeyPatch, chunk: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr("shard.quantization.format.CHUNK", chunk)
    target = torch.empty(6, 4, dtype=dtype)
    Coded(some_codes, SCALES, GROUPS, signed_bytes=True).fill(target)
    assert torch.equal(target, (CODES * SCALES[:, GROUPS]).to(dtype))


@pytest.mark.parametrize(("num_groups", "signed_bytes", "keepable"), [
    (1, True, True), (2, True, False), (1, False, False)])
def test_signed_bytes_with_one_scale_for_each_output_can_be_kept(
        num_groups: int, signed_bytes: bool, keepable: bool) -> None:
    assert Coded(some_codes, SCALES[:, :num_groups], GROUPS, signed_bytes).keepable == keepable


def test_what_stands_for_a_weight_begins_like_it() -> None:
    assert Slice("layers.0.weight_proj.weight", (6, 4), range(6), range(4)).base == "layers.0.weight_proj"
