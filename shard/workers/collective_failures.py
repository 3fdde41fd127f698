"""Collective calls: all ranks complete them, or the group of shards is replaced (docs/exactness.md,
"Collectives of a step")."""

import logging
import os
from collections.abc import Callable
from typing import TypeVar

from shard.parallel.group import RankGroup
from shard.parallel.shared_memory import PeerLost

Result = TypeVar("Result")

logger = logging.getLogger(__name__)


def exit_process() -> None:
    """End the process at once, as a crash does."""
    os._exit(70)


def run_collective(group: RankGroup, exit: Callable[[], object], call: Callable[[], Result]) -> Result:  # noqa: A002 - what it does
    """Run a collective call. If it fails on one rank, the ranks are out of step, and some may wait for the others
    forever: so that rank ends its process, and the group is replaced."""
    try:
        return call()
    except Exception as error:
        if group.size > 1:
            # If another rank is the cause, its own log is more useful than a traceback here.
            logger.error("this shard ends with its group: %s", error, exc_info=not isinstance(error, PeerLost))
            exit()
        raise
