"""Tests of the generated pages docs/reference/settings.md and docs/reference/migration-flags.md."""

from pathlib import Path

import pytest

from launcher.compat.migrate import TABLES_BY_PROGRAM
from launcher.settings_docs import make_configuration_page, make_migration_flags_page

REPOSITORY_ROOT = Path(__file__).parents[2]


def test_configuration_page_is_fresh() -> None:
    assert (REPOSITORY_ROOT / "docs/reference/settings.md").read_text() == make_configuration_page(), "make docs"


def test_migration_flags_page_is_fresh() -> None:
    page = (REPOSITORY_ROOT / "docs/reference/migration-flags.md").read_text()
    assert page == make_migration_flags_page(), "make docs"


@pytest.mark.parametrize("program", TABLES_BY_PROGRAM)
def test_migration_flags_page_has_a_row_for_every_flag_of_a_program(program: str) -> None:
    section = make_migration_flags_page().partition(f"\n## {program}\n")[2].partition("\n## ")[0]
    variables = [line.split(" | ")[1].strip("`") for line in section.splitlines() if line.startswith("| ")][2:]
    assert variables == [flag.environment_variable for flag in TABLES_BY_PROGRAM[program].flags]


def test_setting_row_shows_names_default_bounds_and_meaning() -> None:
    assert ("| `--port`, `-p` | `PORT` | `3000` | from 0 to 65535 | Port to listen on. 0 takes a free one. |"
            in make_configuration_page().splitlines())


def test_choices_of_a_setting_are_shown() -> None:
    assert "| `mixed` | `mixed`, `pause` |" in make_configuration_page()
