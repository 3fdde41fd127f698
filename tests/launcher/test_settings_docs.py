"""Tests of the generated pages docs/reference/settings.md and docs/reference/migration.md."""

from pathlib import Path

from launcher.settings_docs import make_configuration_page, make_migration_page

REPOSITORY_ROOT = Path(__file__).parents[2]


def test_configuration_page_is_fresh() -> None:
    assert (REPOSITORY_ROOT / "docs/reference/settings.md").read_text() == make_configuration_page(), "make docs"


def test_foreign_flags_table_is_fresh() -> None:
    assert (REPOSITORY_ROOT / "docs/reference/migration.md").read_text() == make_migration_page(), "make docs"


def test_setting_row_shows_names_default_bounds_and_meaning() -> None:
    assert ("| `--port`, `-p` | `PORT` | `3000` | from 0 to 65535 | Port to listen on. 0 takes a free one. |"
            in make_configuration_page().splitlines())


def test_choices_of_a_setting_are_shown() -> None:
    assert "| `mixed` | `mixed`, `pause` |" in make_configuration_page()
