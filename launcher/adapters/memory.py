"""What was found under a name, or by a stamp, as long as this process lives: digests, the latest so many.

A name that only a token opened is known to that token alone. Knows no source, and not whether a version is still here.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from hashlib import sha256
from typing import NamedTuple

MOST = 65_536


class Digests:
    """The latest that were put in, by key. Any thread may use it."""

    def __init__(self, most: int = MOST) -> None:
        self._digests: OrderedDict[Hashable, str] = OrderedDict()
        self._most = most
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> str:
        with self._lock:
            return self._digests.get(key, "")

    def put(self, key: Hashable, digest: str) -> None:
        with self._lock:
            self._digests[key] = digest
            self._digests.move_to_end(key)
            if len(self._digests) > self._most:
                self._digests.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._digests.pop(key, None)


class Name(NamedTuple):
    source: str
    name: str
    opened_by: bytes  # what a token is known by, since it is not kept; of no token nothing


def known_by(source: str, name: str, token: str) -> Name:
    return Name(source, name, sha256(token.encode()).digest() if token else b"")
