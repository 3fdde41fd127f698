#!/bin/sh
# Whether the server of this container can be asked.
exec python3 -c '
import os, sys
from urllib.request import urlopen
try:
    urlopen("http://127.0.0.1:%s/health" % os.environ.get("PORT", "3000"), timeout=4).close()
except OSError as error:
    sys.exit("weft: not healthy: %s" % error)
'
