"""Tests of docs/site/collect.py, and of the links between all pages."""

import runpy
from pathlib import Path
from typing import Any

import pytest

REPOSITORY_ROOT = Path(__file__).parents[1]
COLLECT: Any = runpy.run_path(str(REPOSITORY_ROOT / "docs/site/collect.py"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with an empty page for each that the site begins with."""
    for page in COLLECT["ROOT_PAGES"]:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).touch()
    (tmp_path / "docs").mkdir()
    return tmp_path


def test_links_of_all_pages_lead_to_files_and_headings() -> None:
    assert COLLECT["find_broken_links"](REPOSITORY_ROOT) == []


def test_every_page_is_in_the_menu_or_behind_the_index_of_decisions() -> None:
    menu = (REPOSITORY_ROOT / "docs/site/mkdocs.yml").read_text()
    names = [path.relative_to(REPOSITORY_ROOT).as_posix() for path in COLLECT["list_pages"](REPOSITORY_ROOT)]
    assert [name for name in names if name not in menu and "docs/dev/decisions/" not in name] == []


@pytest.mark.parametrize(("text", "faults"), [
    ("[a](CHANGELOG.md) ![b](docs/b.svg) [c](https://c.org/d) `[e](nothing.md)`", []),
    ("[a](docs/a.md)", ["README.md: docs/a.md: there is no such file"]),
    ("## The `one` & [two](CHANGELOG.md)\n[up](#the-one--two)", []),
    ("## Same\n## Same\n[a](#same-1) [b](#same-2)", ["README.md: #same-2: there is no such heading"]),
    ("[a](CHANGELOG.md#b)", ["README.md: CHANGELOG.md#b: there is no such heading"]),
])
def test_broken_links_are_found(checkout: Path, text: str, faults: list[str]) -> None:
    (checkout / "docs/b.svg").touch()
    (checkout / "README.md").write_text(text)
    assert COLLECT["find_broken_links"](checkout) == faults


def test_linked_files_are_copied_and_what_linked_pages_link(checkout: Path, tmp_path: Path) -> None:
    (checkout / "README.md").write_text("[a](results/a.md)")
    (checkout / "results").mkdir()
    (checkout / "results/a.md").write_text("![plot](plot.png)")
    for name in ("plot.png", "other.png"):
        (checkout / "results" / name).touch()
    COLLECT["copy_site"](checkout, tmp_path / "site")
    assert sorted(path.name for path in (tmp_path / "site/results").iterdir()) == ["a.md", "plot.png"]
