"""Banner that is printed when the server is ready: model, device, cache, address and an example request."""

import socket
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

from launcher.adapters.sources.local import LocalSource
from launcher.hub.resolve import ResolvedModel
from launcher.settings import LaunchConfig
from router.config import LOCAL_SOURCE, RouterConfig

GENERATE_BODY = """'{"inputs": "Once upon a time", "parameters": {"max_new_tokens": 40}}'"""
POOLING_BODY = """'{"inputs": "Ada Lovelace was born in London"}'"""
EXAMPLE_REQUESTS = {"text": ("-N ", "/generate_stream", GENERATE_BODY), "vector": ("", "/embed", POOLING_BODY),
                    "labels": ("", "/classify", POOLING_BODY)}
MAX_NAMED_ADAPTERS = 8


def make_banner(listener: socket.socket, num_shard: int, model: ResolvedModel, ready_message: Mapping[str, Any], *,
                key_example: str, adapters: str = "", quantize: str = "", has_page: bool = False) -> str:
    """Return the banner. `ready_message` is the router's ready message; `key_example`: what stands for an API key in a
    command, or "" if clients need none; `adapters`: which ones requests may name; `quantize`: the value of --quantize;
    `has_page`: whether browsers get a page."""
    url, shards = get_listener_url(listener), f"{num_shard} {'shard' if num_shard == 1 else 'shards'}"
    header = f' -H "Authorization: Bearer {key_example}"' if key_example else ""
    flags, path, body = EXAMPLE_REQUESTS[ready_message.get("instead_of_text", "text")]
    example_command = f"curl {flags}{url}{path} -H 'content-type: application/json'{header} -d {body}"
    weights = f", weights quantized to {quantize}" if quantize else ""
    rows = {"note": model.notice, "runs": f"{ready_message['dtype']} on {ready_message['device']}{weights}",
            "cache": describe_kv_cache(ready_message), "adapters": adapters,
            "clients": describe_allowed_clients(listener, needs_key=bool(key_example)),
            "page": f"open {url} in a browser" if has_page else "", "try": example_command,
            "stop": "Ctrl-C, twice to stop at once"}
    return "\n".join([f"weft serves {model.name} on {shards} at {url}",
                      *(f"  {title:8} {text}" for title, text in rows.items() if text)])


def get_listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def describe_kv_cache(ready_message: Mapping[str, Any]) -> str:
    if "instead_of_text" in ready_message:
        return ""  # a model that generates no text has no KV cache
    size = f", {ready_message['bytes'] / 2**30:.2f} GiB" if ready_message["bytes"] else ""
    return f"{ready_message['tokens']:,} tokens{size}: {ready_message['why']}"


def describe_allowed_clients(listener: socket.socket, *, needs_key: bool) -> str:
    if ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
        return "on this machine only; --hostname 0.0.0.0 " + (
            "lets others in who have a key" if needs_key else "and the variable WEFT_API_KEY let others in")
    return "whoever reaches this machine and has a key" if needs_key else (
        "whoever reaches this machine, without a key; --api-key KEY asks for one")


def serves_adapters(launch: LaunchConfig, router: RouterConfig) -> bool:
    return bool(launch.adapters or launch.adapter_root or router.adapter_id or router.preloaded_adapter_ids)


def describe_adapters(launch: LaunchConfig, router: RouterConfig) -> str:
    """Return which adapters requests may name, or "" if adapters are not served."""
    if not serves_adapters(launch, router):
        return ""
    if router.adapter_source == LOCAL_SOURCE and launch.adapter_root:
        return f"{join_names(LocalSource(launch.adapter_root).list_names()) or 'none yet'}, in {launch.adapter_root}"
    preloaded_names = join_names(dict.fromkeys((router.adapter_id, *router.preloaded_adapter_ids)))
    return "; ".join(part for part in (
        f"from the source {router.adapter_source}, unless a request names another",
        f"at the start: {preloaded_names}" if preloaded_names else "",
        "--adapter-source local takes those below --adapter-root" if launch.adapter_root else "") if part)


def join_names(names: Iterable[str]) -> str:
    """Return names as one text, in which a long list is cut."""
    known = [name for name in names if name]
    more = len(known) - MAX_NAMED_ADAPTERS
    return ", ".join(known[:MAX_NAMED_ADAPTERS]) + (f" and {more} more" if more > 0 else "")
