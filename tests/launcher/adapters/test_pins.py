"""Tests of pins: processes share the digests they need through files that end with the processes."""

from contextlib import closing
from pathlib import Path

from launcher.adapters.pins import Pins

A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_everybody_sees_what_everybody_needs(tmp_path: Path) -> None:
    with closing(Pins(tmp_path)) as one, closing(Pins(tmp_path)) as other:
        one.put([A, B])
        other.put([C])
        assert one.everybodys() == other.everybodys() == {A, B, C}
        one.put([B])
        assert other.everybodys() == {B, C}
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_process_needed_counts_no_more(tmp_path: Path) -> None:
    (tmp_path / "left").write_text(f"{A}\n")
    with closing(Pins(tmp_path)) as pins:
        assert pins.everybodys() == set()
        assert not (tmp_path / "left").exists()


def test_half_a_line_is_none(tmp_path: Path) -> None:
    """A full disk leaves such a line."""
    with closing(Pins(tmp_path)) as pins:
        pins.put([A, B[:10]])
        assert pins.everybodys() == {A}
