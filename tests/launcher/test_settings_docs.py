"""Tests of the generated pages docs/configuration.md and docs/migrating.md."""

from pathlib import Path

from launcher.settings_docs import migrating, page

ROOT = Path(__file__).parents[2]


def test_the_page_is_fresh() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == page(), "make docs"


def test_the_table_of_foreign_flags_is_fresh() -> None:
    assert (ROOT / "docs/migrating.md").read_text() == migrating(), "make docs"


def test_a_setting_is_shown_with_its_names_default_bounds_and_meaning() -> None:
    assert ("| `--port`, `-p` | `PORT` | `3000` | from 0 to 65535 | Port to listen on; 0 takes a free one. |"
            in page().splitlines())


def test_choices_are_shown() -> None:
    assert "| `mixed` | `mixed`, `pause` |" in page()
