"""Tests of reading a packed Bible, with three verses packed like the original package."""

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from launcher.demo.training.corpus.sources.scripture import (
    BibleVerse,
    decompress_bible,
    read_verses,
    remove_verse_marks,
)

BIBLE_TEXT = (
    "Holy Bible, Authorized (King James) Version.\nGe1:1 In the beginning God created the heaven and the earth.\n"
    "Psa23:1 The LORD [is] my shepherd; I shall not want.\n1Cor13:13 And now abideth faith, hope, charity.\n")


def compress_lzw(text: bytes) -> bytes:
    """Compress with LZW: emit the code of the longest known string, in groups of eight codes of nine or more bits."""
    known = {bytes([byte]): byte for byte in range(256)}
    codes: list[int] = []
    prefix = b""
    for byte in text:
        if prefix + bytes([byte]) in known:
            prefix += bytes([byte])
            continue
        codes.append(known[prefix])
        known[prefix + bytes([byte])] = len(known) + 1  # code 256 is reserved for a reset of the table
        prefix = bytes([byte])
    return pack_codes([*codes, known[prefix]])


def pack_codes(codes: Iterable[int]) -> bytes:
    packed, group, width, num_known = b"", list[int](), 9, 256
    for code in codes:
        group.append(code)
        num_known += 1
        if len(group) == 8 or num_known > (1 << width) - 1:
            packed += sum(each << index * width for index, each in enumerate(group)).to_bytes(width, "little")
            group = []
        if num_known > (1 << width) - 1:
            width += 1
    num_bytes = (len(group) * width + 7) // 8
    return packed + sum(each << index * width for index, each in enumerate(group)).to_bytes(num_bytes, "little")


def make_bible_file(text: str, block_size: int = 100) -> bytes:
    pieces = [compress_lzw(text[at:at + block_size].encode()) for at in range(0, len(text), block_size)]
    head = b"EC02Compressed Data File".ljust(0x54, b"\0") + struct.pack(">II", block_size, len(pieces))
    offsets = [len(head) + 4 * len(pieces) + 4]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return head + struct.pack(f">{len(offsets)}I", *offsets) + b"".join(pieces)


def test_verses_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "bible.data"
    path.write_bytes(make_bible_file(BIBLE_TEXT))
    assert read_verses(path) == [
        BibleVerse("Ge", 1, 1, "In the beginning God created the heaven and the earth."),
        BibleVerse("Psa", 23, 1, "The Lord is my shepherd; I shall not want."),
        BibleVerse("1Cor", 13, 13, "And now abideth faith, hope, charity."),
    ]


@pytest.mark.parametrize("text", [BIBLE_TEXT, "a" * 3000, BIBLE_TEXT * 40,
                                  "".join(chr(33 + at * at % 90) for at in range(4000))])
def test_compressed_text_is_decompressed(text: str) -> None:
    assert decompress_bible(make_bible_file(text, 65536)).decode() == text


def test_other_files_are_rejected() -> None:
    with pytest.raises(ValueError, match="begins with something else"):
        decompress_bible(b"PK\x03\x04 and so on")


def test_capitals_and_markup_are_normalized() -> None:
    assert remove_verse_marks("the LORD GOD <spake>  unto me") == "the Lord God spake unto me"
