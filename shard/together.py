"""What ranks do together: they all come to its end, or the group is replaced. Knows nothing of what it is."""

import logging
import os
from collections.abc import Callable
from typing import TypeVar

from shard.distributed import Group
from shard.exchange import PeerLost

Result = TypeVar("Result")

log = logging.getLogger(__name__)


def leave() -> None:
    """End the process at once, as a crash does."""
    os._exit(70)


def together(group: Group, exit: Callable[[], object], call: Callable[[], Result]) -> Result:  # noqa: A002 - what it does
    """Ranks that did not all come to the end of what they do together are not in step any more, and some may wait
    for the others for ever: one that fails ends, and the group is replaced."""
    try:
        return call()
    except Exception as error:
        if group.size > 1:
            # Where another rank is to blame, its own end tells more than our traceback.
            log.error("this shard ends with its group: %s", error, exc_info=not isinstance(error, PeerLost))
            exit()
        raise
