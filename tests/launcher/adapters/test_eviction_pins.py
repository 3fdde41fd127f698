"""Tests of pins: processes share the digests they need through files that end with the processes."""

from contextlib import closing
from pathlib import Path

from launcher.adapters.eviction_pins import ProcessPinFile

DIGEST_A, DIGEST_B, DIGEST_C = "a" * 64, "b" * 64, "c" * 64


def test_pins_of_all_processes_are_shared(tmp_path: Path) -> None:
    with closing(ProcessPinFile(tmp_path)) as one, closing(ProcessPinFile(tmp_path)) as other:
        one.write_pins([DIGEST_A, DIGEST_B])
        other.write_pins([DIGEST_C])
        assert one.read_pins_of_all_processes() == other.read_pins_of_all_processes() == {DIGEST_A, DIGEST_B, DIGEST_C}
        one.write_pins([DIGEST_B])
        assert other.read_pins_of_all_processes() == {DIGEST_B, DIGEST_C}
    assert list(tmp_path.iterdir()) == []


def test_pins_of_dead_processes_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "left").write_text(f"{DIGEST_A}\n")
    with closing(ProcessPinFile(tmp_path)) as pins:
        assert pins.read_pins_of_all_processes() == set()
        assert not (tmp_path / "left").exists()


def test_incomplete_line_is_ignored(tmp_path: Path) -> None:
    """A full disk leaves such a line."""
    with closing(ProcessPinFile(tmp_path)) as pins:
        pins.write_pins([DIGEST_A, DIGEST_B[:10]])
        assert pins.read_pins_of_all_processes() == {DIGEST_A}
