"""Tests of findings as lines and of their exit code."""

import pytest

from launcher.doctor.findings import Finding, compute_exit_code, format_gib, make_finding_unless, make_ok_finding


def test_finding_is_a_line_with_its_remedy() -> None:
    assert str(make_ok_finding("port", "it is free")) == "ok       port           it is free"
    assert str(Finding("port", "problem", "it is taken", "choose another")) == (
        "problem  port           it is taken; choose another")


@pytest.mark.parametrize(("states", "code"), [((), 0), (("ok", "warning"), 0), (("ok", "problem", "ok"), 1)])
def test_only_a_problem_gives_exit_code_1(states: tuple[str, ...], code: int) -> None:
    assert compute_exit_code(Finding("x", state, "y") for state in states) == code


def test_satisfied_condition_needs_no_remedy() -> None:
    assert make_finding_unless(True, "disk", "2 GiB", "buy one") == make_ok_finding("disk", "2 GiB")
    assert make_finding_unless(False, "disk", "2 GiB", "buy one") == Finding("disk", "warning", "2 GiB", "buy one")


def test_bytes_are_shown_in_gib() -> None:
    assert format_gib(3 * 2**29) == "1.5 GiB"
