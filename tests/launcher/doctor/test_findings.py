"""Findings as lines and as an exit code."""

import pytest

from launcher.doctor.findings import Finding, exit_code, fine, gib, unless


def test_a_finding_is_a_line_with_its_cure() -> None:
    assert str(fine("port", "it is free")) == "ok       port           it is free"
    assert str(Finding("port", "problem", "it is taken", "choose another")) == (
        "problem  port           it is taken; choose another")


@pytest.mark.parametrize(("states", "code"), [((), 0), (("ok", "warning"), 0), (("ok", "problem", "ok"), 1)])
def test_only_a_problem_fails(states: tuple[str, ...], code: int) -> None:
    assert exit_code(Finding("x", state, "y") for state in states) == code


def test_what_is_good_needs_no_cure() -> None:
    assert unless(True, "disk", "2 GiB", "buy one") == fine("disk", "2 GiB")
    assert unless(False, "disk", "2 GiB", "buy one") == Finding("disk", "warning", "2 GiB", "buy one")


def test_bytes_are_told_in_large_units() -> None:
    assert gib(3 * 2**29) == "1.5 GiB"
