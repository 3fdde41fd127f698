"""Whether the built page belongs to its sources."""

import hashlib

import pytest

from router.http.page.stale_build_check import PAGE_FOLDER, SUMS_FILE, TOOLCHAIN_FILES, find_stale_files


@pytest.fixture
def page_folder(tmp_path):
    """A small page, as `make page` leaves it."""
    for name in ("sources/main.tsx", "static/page.js", *TOOLCHAIN_FILES):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    names = ["sources/main.tsx", "static/page.js", *TOOLCHAIN_FILES]
    (tmp_path / SUMS_FILE).write_text("".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n"
                                              for name in names))
    return tmp_path


def test_committed_page_is_fresh():
    """A failure means that sources changed, or a merge joined them: `make page` builds it anew."""
    assert [*find_stale_files(PAGE_FOLDER)] == []


@pytest.mark.parametrize("name", ["sources/main.tsx", "static/page.js", "package.json"])
def test_changed_file_is_stale(page_folder, name):
    assert [*find_stale_files(page_folder)] == []
    (page_folder / name).write_text("changed")
    assert [*find_stale_files(page_folder)] == [name]


def test_added_and_removed_files_are_stale(page_folder):
    (page_folder / "sources/new.ts").write_text("new")
    (page_folder / "static/page.js").unlink()
    assert [*find_stale_files(page_folder)] == ["sources/new.ts", "static/page.js"]
