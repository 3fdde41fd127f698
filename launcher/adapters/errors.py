"""Error `Refused`: why an adapter cannot be served, as one line for the client and the kind of reason."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

# Absent or not visible; not permitted; unusable; temporarily unavailable; larger than the free space.
Kind = Literal["missing", "forbidden", "invalid", "unreachable", "no_room"]
LONGEST = 500  # characters of a reason
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

log = logging.getLogger(__name__)


class Refused(ValueError):
    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(" ".join(why.split())[:LONGEST])
        self.kind: Kind = kind


def called(name: str) -> str:
    """Quote a name from a client for an error message: escaped, and cut after 200 characters."""
    return f"{name!a:.200}"


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Turn every error into Refused, since a client waits for the answer and the process serves others too."""
    try:
        yield
    except Refused:
        raise
    except ValueError as error:
        raise Refused("invalid", f"{what} cannot be served: {error}") from None
    except OSError as error:
        raise untouched(what, error) from None
    except Exception as error:
        log.exception("%s could not be brought", what)
        raise Refused("unreachable", f"{what} could not be brought: {type(error).__name__}") from None


def untouched(what: str, error: OSError) -> Refused:
    """Return Refused without the file's name, which is only logged for the operator."""
    if error.errno in FULL:
        return Refused("no_room", f"the disk is full, so {what} was not kept")
    log.error("%s could not be brought: %s", what, error)
    return Refused("unreachable", f"{what} could not be brought: {error.strerror}")
