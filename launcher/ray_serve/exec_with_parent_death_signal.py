"""Becomes another program that gets SIGTERM when its parent ends: PARENT_PID COMMAND ...

A replica cannot arrange this between fork and exec, since it has threads.
"""

import os
import sys

from launcher.command_line.run_command import set_parent_death_signal


def main() -> None:
    set_parent_death_signal()
    parent_pid, *command = sys.argv[1:]
    if os.getppid() != int(parent_pid):  # it ended before
        raise SystemExit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
