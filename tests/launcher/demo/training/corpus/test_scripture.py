"""Tests of reading a packed Bible, with three verses packed like the original package."""

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.demo.training.corpus.scripture import Verse, plain, unpacked, verses

TEXT = ("Holy Bible, Authorized (King James) Version.\nGe1:1 In the beginning God created the heaven and the earth.\n"
        "Psa23:1 The LORD [is] my shepherd; I shall not want.\n1Cor13:13 And now abideth faith, hope, charity.\n")


def pack(text: bytes) -> bytes:
    """Compress with LZW: emit the code of the longest known string, in groups of eight codes of nine or more bits."""
    known = {bytes([byte]): byte for byte in range(256)}
    codes: list[int] = []
    held = b""
    for byte in text:
        if held + bytes([byte]) in known:
            held += bytes([byte])
            continue
        codes.append(known[held])
        known[held + bytes([byte])] = len(known) + 1  # code 256 is reserved for a reset of the table
        held = bytes([byte])
    return squeezed([*codes, known[held]])


def squeezed(codes: Iterable[int]) -> bytes:
    packed, group, width, num_known = b"", list[int](), 9, 256
    for code in codes:
        group.append(code)
        num_known += 1
        if len(group) == 8 or num_known > (1 << width) - 1:
            packed += sum(each << place * width for place, each in enumerate(group)).to_bytes(width, "little")
            group = []
        if num_known > (1 << width) - 1:
            width += 1
    rest = (len(group) * width + 7) // 8
    return packed + sum(each << place * width for place, each in enumerate(group)).to_bytes(rest, "little")


def bible(text: str, size: int = 100) -> bytes:
    pieces = [pack(text[at:at + size].encode()) for at in range(0, len(text), size)]
    head = b"EC02Compressed Data File".ljust(0x54, b"\0") + struct.pack(">II", size, len(pieces))
    places = [len(head) + 4 * len(pieces) + 4]
    for piece in pieces:
        places.append(places[-1] + len(piece))
    return head + struct.pack(f">{len(places)}I", *places) + b"".join(pieces)


def test_verses_come_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "bible.data"
    path.write_bytes(bible(TEXT))
    assert verses(path) == [
        Verse("Ge", 1, 1, "In the beginning God created the heaven and the earth."),
        Verse("Psa", 23, 1, "The Lord is my shepherd; I shall not want."),
        Verse("1Cor", 13, 13, "And now abideth faith, hope, charity."),
    ]


@pytest.mark.parametrize("text", [TEXT, "a" * 3000, TEXT * 40, "".join(chr(33 + at * at % 90) for at in range(4000))])
def test_what_was_packed_is_unpacked(text: str) -> None:
    assert unpacked(bible(text, 65536)).decode() == text


def test_other_files_are_refused() -> None:
    with pytest.raises(ValueError, match="begins with something else"):
        unpacked(b"PK\x03\x04 and so on")


def test_names_are_written_like_other_names() -> None:
    assert plain("the LORD GOD <spake>  unto me") == "the Lord God spake unto me"
