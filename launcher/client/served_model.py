"""Name of the model of a server that runs, asked by its address."""

import json
import urllib.request
from http.client import HTTPException

ANSWER_TIMEOUT_SECONDS, MAX_ANSWER_BYTES = 1.0, 2**16


def fetch_served_model_name(hostname: str, port_number: int) -> str:
    """Return the model of the server at an address, or "" if none like weft or text-generation-inference
    answers."""
    host = "127.0.0.1" if hostname == "0.0.0.0" else f"[{hostname}]" if ":" in hostname else hostname  # noqa: S104 - compared
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{host}:{port_number}/info", timeout=ANSWER_TIMEOUT_SECONDS) as answer:
            return str(json.loads(answer.read(MAX_ANSWER_BYTES))["model_id"])
    except (OSError, ValueError, LookupError, TypeError, HTTPException):
        return ""
