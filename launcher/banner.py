"""Banner that is printed when the server is ready: model, device, cache, address and an example request."""

import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from launcher.hub.resolve import Model

GENERATE = """'{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40}}'"""
READ = """'{"inputs": "Ada Lovelace was born in London"}'"""
TRIALS = {
    "text": ("-N ", "/generate_stream", GENERATE), "vector": ("", "/embed", READ), "labels": ("", "/classify", READ)}
WITH_KEY = """ -H "Authorization: Bearer $WEFT_API_KEY\""""


def banner(listener: socket.socket, num_shard: int, model: Model, served: Mapping[str, Any], *, keyed: bool) -> str:
    """Return the banner. `served` is the router's ready message; `keyed`: whether clients need an API key."""
    url, shards = url_of(listener), f"{num_shard} {'shard' if num_shard == 1 else 'shards'}"
    flags, path, body = TRIALS[served.get("instead_of_text", "text")]
    ask = f"curl {flags}{url}{path} -H 'content-type: application/json'{WITH_KEY if keyed else ''} -d {body}"
    rows = {"note": model.notice, "runs": f"{served['dtype']} on {served['device']}", "cache": cache(served),
            "clients": clients(listener, keyed=keyed), "try": ask, "stop": "Ctrl-C, twice to stop at once"}
    return "\n".join([f"weft serves {model.name} on {shards} at {url}",
                      *(f"  {title:8} {text}" for title, text in rows.items() if text)])


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def cache(served: Mapping[str, Any]) -> str:
    if "instead_of_text" in served:
        return ""  # a model that generates no text has no KV cache
    size = f", {served['bytes'] / 2**30:.2f} GiB" if served["bytes"] else ""
    return f"{served['tokens']:,} tokens{size}: {served['why']}"


def clients(listener: socket.socket, *, keyed: bool) -> str:
    if ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
        return "on this machine only; --hostname 0.0.0.0 --api-key KEY lets others in"
    return "whoever reaches this machine and has a key" if keyed else (
        "whoever reaches this machine, without a key; --api-key KEY asks for one")
