"""Uniform numbers that decide tokens: a hash of the sequence's key and the token's index, and of nothing else.

So a token is drawn the same whatever else is in the batch, and drawn the same again when a sequence re-enters.
"""

from array import array

import torch
from torch import Tensor

# The increment and the two multipliers of the splitmix64 generator, as signed words.
STEP = 0x9E3779B97F4A7C15 - 2**64
MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def uniforms(keys: list[int], indices: list[int]) -> Tensor:  # [rows] float64, from 0 to below 1
    return shift(mix(unsigned(keys) + unsigned(indices) * STEP), 11).double() * 2.0**-53


def mix(words: Tensor) -> Tensor:
    """Mix each word so that every bit depends on every bit; products are modulo 2**64."""
    words = (words ^ shift(words, 30)) * MULTIPLIERS[0]
    words = (words ^ shift(words, 27)) * MULTIPLIERS[1]
    return words ^ shift(words, 31)


def shift(words: Tensor, places: int) -> Tensor:
    """Shift right and fill with zeros: torch has signed words only, and `>>` fills with the sign."""
    return torch.bitwise_and(words >> places, 2**(64 - places) - 1)


def unsigned(numbers: list[int]) -> Tensor:
    """Return the 64 bits of each unsigned number as a signed word."""
    return torch.frombuffer(array("Q", numbers), dtype=torch.int64)
