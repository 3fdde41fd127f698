"""Distributions of lengths: `64`, `16-128` (uniform), `1,25,100` (one of them) or `normal:100:30`
(mean:deviation)."""

import re
from collections.abc import Callable
from random import Random

LengthSampler = Callable[[Random], int]
LENGTH_SYNTAX = "64, 16-128, 1,25,100 or normal:MEAN:DEVIATION"
NUMBER_PATTERN = r"(\d+\.?\d*|\.\d+)"


def parse_length_distribution(text: str, flag: str) -> LengthSampler:
    if match := re.fullmatch(r"(\d+)-(\d+)", text):
        return make_uniform_sampler(int(match[1]), int(match[2]), flag)
    if match := re.fullmatch(f"normal:{NUMBER_PATTERN}:{NUMBER_PATTERN}", text):
        return make_normal_sampler(float(match[1]), float(match[2]))
    if re.fullmatch(r"\d+(,\d+)*", text):
        return make_choice_sampler([int(word) for word in text.split(",")], flag)
    raise ValueError(f"{flag} is {LENGTH_SYNTAX}, got {text!r}")


def make_uniform_sampler(minimum: int, maximum: int, flag: str) -> LengthSampler:
    if not 1 <= minimum <= maximum:
        raise ValueError(f"{flag} begins with 1 or more and rises, got {minimum}-{maximum}")
    return lambda random: random.randint(minimum, maximum)


def make_choice_sampler(choices: list[int], flag: str) -> LengthSampler:
    if min(choices) < 1:
        raise ValueError(f"{flag}: a length is at least 1, got {min(choices)}")
    return lambda random: random.choice(choices)


def make_normal_sampler(mean: float, deviation: float) -> LengthSampler:
    return lambda random: max(1, round(random.gauss(mean, deviation)))
