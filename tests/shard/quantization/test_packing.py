import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.quantized_checkpoints import pack

from shard.quantization.packing import cover, cut, fit_bytes, unpacked, without_zeros

NO_GROUPS = torch.zeros(2).long()


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_come_out_as_they_went_in(bits: int) -> None:
    codes = np.random.default_rng(0).integers(0, 2**bits, (5, 32))
    assert unpacked(torch.from_numpy(pack(codes, bits)), bits).tolist() == codes.tolist()


@settings(max_examples=50)
@given(first=st.integers(0, 30), count=st.integers(1, 20), per_word=st.sampled_from([4, 8]))
def test_any_places_are_cut_out_of_the_words_that_cover_them(first: int, count: int, per_word: int) -> None:
    places = range(first, first + count)
    words = cover(places, per_word)
    covered = torch.arange(words.start * per_word, words.stop * per_word).view(1, -1)
    assert cut(covered, places, per_word)[0].tolist() == list(places)


@pytest.mark.parametrize(("signed_bytes", "zeros"), [(True, [3, 16]), (False, [256, 0])])
def test_zero_points_come_off(signed_bytes: bool, zeros: list[int]) -> None:
    codes = torch.tensor([[0, 15]], dtype=torch.uint8)
    off = without_zeros(codes, torch.tensor([zeros], dtype=torch.int16), torch.arange(2), signed_bytes=signed_bytes)
    assert off.tolist() == [[-zeros[0], 15 - zeros[1]]]


@pytest.mark.parametrize(("zero", "bits", "fits"), [(0, 4, True), (16, 4, True), (128, 8, True), (127, 8, False)])
def test_eight_bits_fit_a_signed_byte_around_the_middle_only(zero: int, bits: int, fits: bool) -> None:
    assert fit_bytes(torch.tensor([[128, zero]]) if bits == 8 else torch.tensor([[zero]]), bits) == fits
