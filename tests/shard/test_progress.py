"""What is told of a start: few lines, and never at the cost of the start."""

import os

from shard.progress import Lines


def told(*calls: tuple[str, int, int]) -> list[str]:
    read, write = os.pipe()
    lines = Lines(write)
    for call in calls:
        lines(*call)
    os.close(write)
    with open(read) as heard:
        return heard.read().splitlines()


def test_a_line_has_phase_done_and_total() -> None:
    assert told(("load", 3, 10), ("check", 0, 0)) == ["progress load 3 10", "progress check 0 0"]


def test_there_is_one_line_for_every_percent() -> None:
    lines = told(*(("load", done, 10_000) for done in range(1, 10_001)))
    assert len(lines) == 101
    assert lines[-1] == "progress load 10000 10000"


def test_whoever_is_gone_does_not_stop_the_start() -> None:
    read, write = os.pipe()
    os.close(read)
    Lines(write)("load", 1, 2)
    os.close(write)


def test_without_a_descriptor_nothing_is_told() -> None:
    Lines(-1)("load", 1, 2)
