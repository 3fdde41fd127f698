"""How processes of a server end, all alike: at once. The router uses this too."""

import os
import sys
from contextlib import suppress
from typing import NoReturn


def end(code: int) -> NoReturn:
    """With what was said until now. To take apart all that torch holds, which the system frees anyway, would take half
    as long as to import it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    os._exit(code)
