import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints.quantized_checkpoints import pack_codes

from shard.quantization.integer_unpacking import (
    can_fit_int8,
    find_word_range,
    select_code_range,
    subtract_zero_points,
    unpack_words,
)

NO_GROUPS = torch.zeros(2).long()


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_codes_are_unpacked_unchanged(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 2**bits, (5, 32))
    assert unpack_words(torch.from_numpy(pack_codes(codes, bits)), bits).tolist() == codes.tolist()


@settings(max_examples=50)
@given(first=st.integers(0, 30), count=st.integers(1, 20), per_word=st.sampled_from([4, 8]))
def test_any_range_is_sliced_from_the_words_that_cover_it(first: int, count: int, per_word: int) -> None:
    places = range(first, first + count)
    words = find_word_range(places, per_word)
    covered = torch.arange(words.start * per_word, words.stop * per_word).view(1, -1)
    assert select_code_range(covered, places, per_word)[0].tolist() == list(places)


@pytest.mark.parametrize(("signed_bytes", "zeros"), [(True, [3, 16]), (False, [256, 0])])
def test_zero_points_are_subtracted(signed_bytes: bool, zeros: list[int]) -> None:
    codes = torch.tensor([[0, 15]], dtype=torch.uint8)
    shifted_codes = subtract_zero_points(codes, torch.tensor([zeros], dtype=torch.int16), torch.arange(2),
                                         is_int8=signed_bytes)
    assert shifted_codes.tolist() == [[-zeros[0], 15 - zeros[1]]]


@pytest.mark.parametrize(("zero", "bits", "fits"), [(0, 4, True), (16, 4, True), (128, 8, True), (127, 8, False)])
def test_8_bit_codes_fit_a_signed_byte_only_with_a_middle_zero_point(zero: int, bits: int, fits: bool) -> None:
    assert can_fit_int8(torch.tensor([[128, zero]]) if bits == 8 else torch.tensor([[zero]]), bits) == fits
