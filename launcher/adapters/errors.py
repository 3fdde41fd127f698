"""Error `AdapterError`: why an adapter cannot be served, as one line for the client and the kind of reason."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

# Absent or not visible; not permitted; unusable; temporarily unavailable; larger than the free space.
AdapterErrorKind = Literal["missing", "forbidden", "invalid", "unreachable", "no_room"]
MAX_MESSAGE_LENGTH = 500  # characters of a reason
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

logger = logging.getLogger(__name__)


class AdapterError(ValueError):
    """An adapter cannot be served; the message is one line for the client, `kind` the kind of reason."""

    def __init__(self, kind: AdapterErrorKind, reason: str) -> None:
        super().__init__(" ".join(reason.split())[:MAX_MESSAGE_LENGTH])
        self.kind: AdapterErrorKind = kind


def quote_name(name: str) -> str:
    """Quote a name from a client for an error message: escaped, and cut after 200 characters."""
    return f"{name!a:.200}"


@contextmanager
def convert_errors_to_adapter_error(subject: str) -> Iterator[None]:
    """Turn every error into AdapterError, since a client waits for the answer and the process serves others too."""
    try:
        yield
    except AdapterError:
        raise
    except ValueError as error:
        raise AdapterError("invalid", f"{subject} cannot be served: {error}") from None
    except OSError as error:
        raise convert_os_error(subject, error) from None
    except Exception as error:
        logger.exception("%s could not be brought", subject)
        raise AdapterError("unreachable", f"{subject} could not be brought: {type(error).__name__}") from None


def convert_os_error(subject: str, error: OSError) -> AdapterError:
    """Return AdapterError without the file's name, which is only logged for the operator."""
    if error.errno in DISK_FULL_ERRNOS:
        return AdapterError("no_room", f"the disk is full, so {subject} was not kept")
    logger.error("%s could not be brought: %s", subject, error)
    return AdapterError("unreachable", f"{subject} could not be brought: {error.strerror}")
