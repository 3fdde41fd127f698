"""Isolation from the network, for child processes that work on what clients bring and need no connection."""

import ctypes

# Flags of Linux' unshare(2).
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000


def leave_network() -> bool:
    """Move this process into a network namespace without interfaces; return whether the system allows that.

    Open sockets stay usable. Without rights of an administrator it takes a user namespace, which a process with several
    threads cannot enter.
    """
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    return unshare is not None and any(unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET))
