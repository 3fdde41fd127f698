"""Why there is no adapter, in one line for who asked for it, and of which kind the reason is. Knows no source."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

# Not there or not to be seen; not allowed; of no use as it is; not to be had now; too large for what is free.
Kind = Literal["missing", "forbidden", "invalid", "unreachable", "no_room"]
LONGEST = 500  # characters of a reason
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

log = logging.getLogger(__name__)


class Refused(ValueError):
    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(" ".join(why.split())[:LONGEST])
        self.kind: Kind = kind


def called(name: str) -> str:
    """A name that anybody may have made up, as errors show it."""
    return f"{name!a:.200}"


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is Refused: somebody waits for an answer, and others for theirs."""
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
    """Which file it was, the operator reads."""
    if error.errno in FULL:
        return Refused("no_room", f"the disk is full, so {what} was not kept")
    log.error("%s could not be brought: %s", what, error)
    return Refused("unreachable", f"{what} could not be brought: {error.strerror}")
