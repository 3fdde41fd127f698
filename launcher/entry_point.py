"""Entry point of the command `weft`.

It imports the command line itself, so that Ctrl-C during the imports ends the program as it ends others: without a
traceback.
"""

import signal
from importlib import import_module


def main() -> None:
    """Run the command line."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    command_line = import_module("launcher.cli")
    signal.signal(signal.SIGINT, handler)
    command_line.main()
