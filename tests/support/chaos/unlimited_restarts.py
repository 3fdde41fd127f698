"""`weft` whose launcher never gives up: children that were killed hundreds of times are replaced after half a second.

    python -P unlimited_restarts.py serve ...

Everything else is as in `weft`. With the launcher's own policy the fifth death within five minutes ends the server.
"""

import sys

from launcher.entry_point import main
from launcher.supervisor import restart_policy
from launcher.supervisor.supervisor import Supervisor

if __name__ == "__main__":
    restart_policy.MAX_DEATHS = sys.maxsize
    assert Supervisor.__init__.__kwdefaults__ is not None
    Supervisor.__init__.__kwdefaults__["pauses"] = (0.5,)
    main()
