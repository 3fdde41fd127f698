"""Uniform numbers that decide tokens: a hash of the sequence's key and the token's index, and of nothing else, by
docs/exactness.md, "Each row is sampled by itself".
"""

from array import array

import torch
from torch import Tensor

# The increment and the two multipliers of the splitmix64 generator, as signed words.
SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15 - 2**64
SPLITMIX_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def draw_uniforms(sampling_keys: list[int], token_indices: list[int]) -> Tensor:  # [rows] float64, from 0 to below 1
    return shift_right_unsigned(
        mix_bits(to_signed_words(sampling_keys) + to_signed_words(token_indices) * SPLITMIX_INCREMENT),
        11).double() * 2.0**-53


def mix_bits(words: Tensor) -> Tensor:
    """Mix each word so that every bit depends on every bit; products are modulo 2**64."""
    words = (words ^ shift_right_unsigned(words, 30)) * SPLITMIX_MULTIPLIERS[0]
    words = (words ^ shift_right_unsigned(words, 27)) * SPLITMIX_MULTIPLIERS[1]
    return words ^ shift_right_unsigned(words, 31)


def shift_right_unsigned(words: Tensor, num_bits: int) -> Tensor:
    """Shift right and fill with zeros: torch has signed words only, and `>>` fills with the sign."""
    return torch.bitwise_and(words >> num_bits, 2**(64 - num_bits) - 1)


def to_signed_words(numbers: list[int]) -> Tensor:
    """Return the 64 bits of each unsigned number as a signed word."""
    return torch.frombuffer(array("Q", numbers), dtype=torch.int64)
