"""The tables of docs/dev/decisions/reliability.md name tests that exist, and leave out nothing."""

import re
from functools import cache
from pathlib import Path

import pytest

TESTS_FOLDER = Path(__file__).parent
PAGE = TESTS_FOLDER.parent / "docs/dev/decisions/reliability.md"
ROW_PATTERN = re.compile(r"\| ([RCD]\d+) \|(.*)\|(.*)\|(.*)\|")
TEST_PATTERN = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
EXPECTED_IDS = {f"R{number}" for number in range(1, 57)} | {f"C{number}" for number in range(1, 25)} | {
    f"D{number}" for number in range(1, 15)}


def read_evidence() -> dict[str, str]:
    """Return what shows each requirement, by its id."""
    evidence: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if (match := ROW_PATTERN.fullmatch(line)) is not None:
            assert match[1] not in evidence, f"{match[1]} stands there twice"
            evidence[match[1]] = match[3].strip()
    return evidence


@cache
def list_test_names(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^\s*(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_no_requirement_is_left_out() -> None:
    assert set(read_evidence()) == EXPECTED_IDS


@pytest.mark.parametrize("row_id", sorted(EXPECTED_IDS, key=lambda name: (name[0], int(name[1:]))))
def test_row_names_existing_tests_or_says_that_nothing_shows_it(row_id: str) -> None:
    shown_by = read_evidence()[row_id]
    tests = TEST_PATTERN.findall(shown_by)
    assert bool(tests) != shown_by.startswith("not shown")
    assert not tests or not TEST_PATTERN.sub("", shown_by).strip()
    for file, name in tests:
        assert (TESTS_FOLDER / file).is_file(), file
        assert name in list_test_names(TESTS_FOLDER / file), f"{file}::{name}"
