"""Names of cache blocks: a chain of hashes over who may share them and all tokens up to a block's end.

Two blocks have one name only if their tokens, everything before them and those who may share them are the same. Names
are salted per process, so that nobody who reads them can find out tokens by trying.
"""

import secrets
from array import array
from collections.abc import Sequence as Rows
from hashlib import sha256

DIGEST = 16  # bytes of a name
SALT = secrets.token_bytes(16)


def namespace(*parts: str, salt: bytes = SALT) -> bytes:
    """Of those who may share: each part with its length before it, so that no two lists of parts look the same."""
    digest = sha256(b"weft cache namespace" + salt)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()[:DIGEST]


def block_hashes(before: bytes, tokens: Rows[int], size: int) -> tuple[bytes, ...]:
    """The names of all blocks that these tokens fill, behind the block, or in the namespace, that has the name
    `before`."""
    data, width = array("I", tokens).tobytes(), size * array("I").itemsize
    names, name = [], before
    for start in range(0, len(data) - width + 1, width):
        name = sha256(name + data[start:start + width]).digest()[:DIGEST]
        names.append(name)
    return tuple(names)
