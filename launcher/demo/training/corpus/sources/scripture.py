"""Reader of the King James Bible from Debian's package `bible-kjv-text`: complete verses in order.

The file has a table of offsets, and at each offset a piece of the text, compressed as by compress(1).
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

# first bytes of the file; offsets of the table's size and of the table
FILE_MAGIC, NUM_PIECES_OFFSET, TABLE_OFFSET = b"EC02", 0x58, 0x5C
MIN_CODE_BITS, MAX_CODE_BITS = 9, 16
CLEAR_CODE = 256  # the code that clears the table of known strings
VERSE_PATTERN = re.compile(r"([1-3]?[A-Z][A-Za-z]*)(\d+):(\d+) (.+)")


@dataclass(frozen=True)
class BibleVerse:
    """Verse of the King James Bible."""

    book: str  # shortened, such as Ge or Ps
    chapter: int
    number: int
    text: str


def read_verses(path: Path) -> list[BibleVerse]:
    lines = decompress_bible(path.read_bytes()).decode("ascii").splitlines()
    matches = (VERSE_PATTERN.fullmatch(line) for line in lines)
    return [BibleVerse(match[1], int(match[2]), int(match[3]), remove_verse_marks(match[4])) for match in matches
            if match]


def remove_verse_marks(text: str) -> str:
    """Remove the marks of words that translators added, and write LORD and GOD like other names."""
    text = re.sub(r"[\[\]{}<>#]", "", text)
    return re.sub(r"\s+", " ", text.replace("LORD", "Lord").replace("GOD", "God").replace("JEHOVAH", "Jehovah")).strip()


def decompress_bible(data: bytes) -> bytes:
    if not data.startswith(FILE_MAGIC):
        raise ValueError("not the text of bible-kjv-text: it begins with something else")
    (num_pieces,) = struct.unpack_from(">I", data, NUM_PIECES_OFFSET)
    offsets = struct.unpack_from(f">{num_pieces + 1}I", data, TABLE_OFFSET)
    return b"".join(b"".join(decompress_piece(data[begin:end])) for begin, end in pairwise(offsets))


def decompress_piece(piece: bytes) -> Iterator[bytes]:
    """Yield the strings of one compressed piece (LZW): each code is a known string, and adds a new one to the table."""
    known = [bytes([byte]) for byte in range(256)] + [b""]
    last = b""
    for code in read_lzw_codes(piece):
        if code == CLEAR_CODE:
            del known[CLEAR_CODE + 1:]
            last = b""
            continue
        text = known[code] if code < len(known) else last + last[:1]
        if last and len(known) < 1 << MAX_CODE_BITS:
            known.append(last + text[:1])
        last = text
        yield text


def read_lzw_codes(piece: bytes) -> Iterator[int]:
    """Yield the codes, whose width in bits grows with the number of known strings.

    Codes of one width are stored in groups of eight, which fill whole bytes; the rest of a group may be unused.
    """
    at, num_known, width = 0, CLEAR_CODE, MIN_CODE_BITS
    while at < len(piece):
        group = int.from_bytes(piece[at:at + width], "little")
        at += width
        for index in range(8 * len(piece[at - width:at]) // width):
            code = group >> index * width & (1 << width) - 1
            yield code
            num_known += 1
            if code == CLEAR_CODE:
                num_known, width = CLEAR_CODE, MIN_CODE_BITS
                break
            if num_known > (1 << width) - 1 and width < MAX_CODE_BITS:
                width += 1
                break
