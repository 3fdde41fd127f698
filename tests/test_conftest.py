"""What conftest.py promises: processes of pytest share no folder."""

import tempfile
from pathlib import Path


def test_tmp_path_is_in_a_folder_of_this_process(tmp_path: Path) -> None:
    """pytest's own folder is shared by all of a user's processes: two that ended at once failed over its leftovers."""
    assert not [folder for folder in tmp_path.parents if folder.name.startswith("pytest-of-")]
    assert Path(tempfile.gettempdir()) not in tmp_path.parents  # leftovers in there fail the test
