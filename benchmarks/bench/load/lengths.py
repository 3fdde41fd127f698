"""Distributions of lengths: `64`, `16-128` (uniform), `1,25,100` (one of them) or `normal:100:30` (mean:deviation)."""

import re
from collections.abc import Callable
from random import Random

Lengths = Callable[[Random], int]
FORMS = "64, 16-128, 1,25,100 or normal:MEAN:DEVIATION"
NUMBER = r"(\d+\.?\d*|\.\d+)"


def lengths(words: str, flag: str) -> Lengths:
    if form := re.fullmatch(r"(\d+)-(\d+)", words):
        return between(int(form[1]), int(form[2]), flag)
    if form := re.fullmatch(f"normal:{NUMBER}:{NUMBER}", words):
        return normal(float(form[1]), float(form[2]))
    if re.fullmatch(r"\d+(,\d+)*", words):
        return one_of([int(word) for word in words.split(",")], flag)
    raise ValueError(f"{flag} is {FORMS}, got {words!r}")


def between(least: int, most: int, flag: str) -> Lengths:
    if not 1 <= least <= most:
        raise ValueError(f"{flag} begins with 1 or more and rises, got {least}-{most}")
    return lambda random: random.randint(least, most)


def one_of(choices: list[int], flag: str) -> Lengths:
    if min(choices) < 1:
        raise ValueError(f"{flag}: a length is at least 1, got {min(choices)}")
    return lambda random: random.choice(choices)


def normal(mean: float, deviation: float) -> Lengths:
    return lambda random: max(1, round(random.gauss(mean, deviation)))
