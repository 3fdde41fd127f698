import pytest
import torch
from torch import Tensor

from shard.quantization.quantization_format import MatrixSlice, QuantizedSlice

CODES = torch.arange(-12, 12, dtype=torch.int8).view(6, 4)
SCALES = torch.arange(1.0, 13).view(6, 2)
GROUP_OF_COLUMN = torch.tensor([1, 0, 0, 1])


def read_codes(first: int, last: int) -> Tensor:
    return CODES[first:last]


@pytest.mark.parametrize("chunk", [1, 8, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_codes_times_group_scales(
        monkeypatch: pytest.MonkeyPatch, chunk: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr("shard.quantization.quantization_format.CODES_PER_CHUNK", chunk)
    target = torch.empty(6, 4, dtype=dtype)
    QuantizedSlice(read_codes, SCALES, GROUP_OF_COLUMN, is_int8=True).dequantize_into(target)
    assert torch.equal(target, (CODES * SCALES[:, GROUP_OF_COLUMN]).to(dtype))


@pytest.mark.parametrize(("num_groups", "signed_bytes", "keepable"), [
    (1, True, True), (2, True, False), (1, False, False)])
def test_signed_bytes_with_one_scale_per_output_can_be_kept(
        num_groups: int, signed_bytes: bool, keepable: bool) -> None:
    assert QuantizedSlice(read_codes, SCALES[:, :num_groups], GROUP_OF_COLUMN,
                          signed_bytes).can_stay_int8 == keepable


def test_base_name_of_a_weight_lacks_its_suffix() -> None:
    assert MatrixSlice("layers.0.weight_proj.weight", (6, 4), range(6), range(4)).module_name == "layers.0.weight_proj"
