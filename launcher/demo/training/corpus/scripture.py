"""Reader of the King James Bible from Debian's package `bible-kjv-text`: complete verses in order.

The file has a table of offsets, and at each offset a piece of the text, compressed as by compress(1).
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

MAGIC, NUM_PIECES, TABLE = b"EC02", 0x58, 0x5C  # first bytes of the file; offsets of the table's size and of the table
LEAST_BITS, MOST_BITS = 9, 16
CLEAR = 256  # the code that clears the table of known strings
VERSE = re.compile(r"([1-3]?[A-Z][A-Za-z]*)(\d+):(\d+) (.+)")


@dataclass(frozen=True)
class Verse:
    book: str  # shortened, such as Ge or Ps
    chapter: int
    number: int
    text: str


def verses(path: Path) -> list[Verse]:
    lines = unpacked(path.read_bytes()).decode("ascii").splitlines()
    found = (VERSE.fullmatch(line) for line in lines)
    return [Verse(each[1], int(each[2]), int(each[3]), plain(each[4])) for each in found if each]


def plain(text: str) -> str:
    """Remove the marks of words that translators added, and write LORD and GOD like other names."""
    text = re.sub(r"[\[\]{}<>#]", "", text)
    return re.sub(r"\s+", " ", text.replace("LORD", "Lord").replace("GOD", "God").replace("JEHOVAH", "Jehovah")).strip()


def unpacked(data: bytes) -> bytes:
    if not data.startswith(MAGIC):
        raise ValueError("not the text of bible-kjv-text: it begins with something else")
    (num_pieces,) = struct.unpack_from(">I", data, NUM_PIECES)
    places = struct.unpack_from(f">{num_pieces + 1}I", data, TABLE)
    return b"".join(b"".join(expanded(data[begin:end])) for begin, end in pairwise(places))


def expanded(piece: bytes) -> Iterator[bytes]:
    """Yield the strings of one compressed piece (LZW): each code is a known string, and adds a new one to the table."""
    known = [bytes([byte]) for byte in range(256)] + [b""]
    last = b""
    for code in codes(piece):
        if code == CLEAR:
            del known[CLEAR + 1:]
            last = b""
            continue
        text = known[code] if code < len(known) else last + last[:1]
        if last and len(known) < 1 << MOST_BITS:
            known.append(last + text[:1])
        last = text
        yield text


def codes(piece: bytes) -> Iterator[int]:
    """Yield the codes, whose width in bits grows with the number of known strings.

    Codes of one width are stored in groups of eight, which fill whole bytes; the rest of a group may be unused.
    """
    at, num_known, width = 0, CLEAR, LEAST_BITS
    while at < len(piece):
        group = int.from_bytes(piece[at:at + width], "little")
        at += width
        for place in range(8 * len(piece[at - width:at]) // width):
            code = group >> place * width & (1 << width) - 1
            yield code
            num_known += 1
            if code == CLEAR:
                num_known, width = CLEAR, LEAST_BITS
                break
            if num_known > (1 << width) - 1 and width < MOST_BITS:
                width += 1
                break
