"""Hashes of KV cache blocks, chained over a namespace and all tokens up to the end of a block.

Two blocks have the same hash (`name`) only if their tokens, all tokens before them and their namespaces are the same.
Hashes are salted per process, so that tokens cannot be guessed from recorded hashes by trial.
"""

import secrets
from array import array
from collections.abc import Sequence as Rows
from hashlib import sha256

DIGEST = 16  # bytes of a block hash
SALT = secrets.token_bytes(16)


def namespace(*parts: str, salt: bytes = SALT) -> bytes:
    """Return the start of the hash chain for requests that may share blocks.

    Each part is hashed with its length before it, so that two different lists of parts are never hashed as equal bytes.
    """
    digest = sha256(b"weft cache namespace" + salt)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()[:DIGEST]


def block_hashes(before: bytes, tokens: Rows[int], size: int) -> tuple[bytes, ...]:
    """Return the hashes of all blocks that the tokens fill, after the block or namespace with the hash `before`."""
    data, width = array("I", tokens).tobytes(), size * array("I").itemsize
    names, name = [], before
    for start in range(0, len(data) - width + 1, width):
        name = sha256(name + data[start:start + width]).digest()[:DIGEST]
        names.append(name)
    return tuple(names)
