"""Bounded in-memory cache of the digests found for names and stamps.

A name that needed a token is only found again with the same token. The version of a digest may have been evicted.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from hashlib import sha256
from typing import NamedTuple

MAX_DIGESTS = 65_536


class AdapterDigestCache:
    """Thread-safe map of digests by key, which drops the oldest entries."""

    def __init__(self, max_digests: int = MAX_DIGESTS) -> None:
        self._digests: OrderedDict[Hashable, str] = OrderedDict()
        self._max_digests = max_digests
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> str:
        with self._lock:
            return self._digests.get(key, "")

    def put(self, key: Hashable, digest: str) -> None:
        with self._lock:
            self._digests[key] = digest
            self._digests.move_to_end(key)
            if len(self._digests) > self._max_digests:
                self._digests.popitem(last=False)

    def remove(self, key: Hashable) -> None:
        with self._lock:
            self._digests.pop(key, None)


class AdapterNameKey(NamedTuple):
    """Key under which the digest of a named adapter is cached, apart for each token."""

    source: str
    name: str
    token_hash: bytes  # hash of the token, which is not kept itself; empty for no token


def make_name_key(source: str, name: str, token: str) -> AdapterNameKey:
    return AdapterNameKey(source, name, sha256(token.encode()).digest() if token else b"")
