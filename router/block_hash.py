"""Hashes of KV cache blocks, chained over a namespace and all tokens up to the end of a block.

Two blocks have the same hash only if their tokens, all tokens before them and their namespaces are the same. Hashes are
salted per process, so that tokens cannot be guessed from recorded hashes by trial.
"""

import secrets
from array import array
from collections.abc import Sequence as GenericSequence
from hashlib import sha256

DIGEST_SIZE = 16  # bytes of a block hash
SALT = secrets.token_bytes(16)


def hash_namespace(*parts: str, salt: bytes = SALT) -> bytes:
    """Return the start of the hash chain for requests that may share blocks.

    Each part is hashed with its length before it, so that two different lists of parts are never hashed as equal bytes.
    """
    digest = sha256(b"weft cache namespace" + salt)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()[:DIGEST_SIZE]


def hash_blocks(parent_hash: bytes, tokens: GenericSequence[int], block_size: int) -> tuple[bytes, ...]:
    """Return the hashes of all blocks that the tokens fill, after the block or namespace of `parent_hash`."""
    data, block_bytes = array("I", tokens).tobytes(), block_size * array("I").itemsize
    hashes, last_hash = [], parent_hash
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        last_hash = sha256(last_hash + data[start:start + block_bytes]).digest()[:DIGEST_SIZE]
        hashes.append(last_hash)
    return tuple(hashes)
