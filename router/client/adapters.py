"""The `weft adapters` command: lists, loads and unloads adapters of a running server.

Run as `python -P -m router.client.adapters JSON`; the JSON object holds the fields of `Order`. Secrets come from
environment variables: WEFT_API_KEY is the key for the server, WEFT_ADAPTER_TOKEN the token for the adapter's source.
The exit code is 1 if the server rejects the command or cannot be reached.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from router.client.chat import Failed, check_status, on_the_way_to
from router.client.terminal import OBEYED
from router.config import ADAPTER_TOKEN, API_KEY
from router.simulation.report import aligned

# No total or read timeout: fetching and loading may take any time, and the server sends nothing meanwhile.
PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=10)
HEAD = ["adapter", "source", "state", "requests", "loads", "on a shard", "on disk", "last used", ""]
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
SPANS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True, slots=True)
class Order:
    do: str  # ls, load or unload
    url: str
    adapter: str = ""
    source: str = ""
    alias: str = ""
    as_json: bool = False

    @property
    def address(self) -> str:
        """URL of the route. `url` may end with /v1, as the base URL of other clients does."""
        path = f"/{quote(self.adapter)}" if self.do == "unload" else ""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/adapters{path}"

    def body(self, token: str) -> dict[str, Any] | None:
        if self.do != "load":
            return None
        given = {"source": self.source, "api_token": token, "alias": self.alias}
        return {"id": self.adapter, **{name: value for name, value in given.items() if value}}


METHODS = {"ls": "GET", "load": "POST", "unload": "DELETE"}


async def ask(order: Order, key: str = "", token: str = "") -> dict[str, Any]:
    """Send the order and return the JSON of the response. Raises Failed."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with on_the_way_to(order.url):
        async with (aiohttp.ClientSession(timeout=PATIENCE, headers=headers) as session,
                    session.request(METHODS[order.do], order.address, json=order.body(token)) as response):
            await check_status(response)
            told: dict[str, Any] = await response.json()
    return told


def shown(order: Order, told: dict[str, Any], now: float) -> str:
    if order.as_json:
        return json.dumps(told, indent=2)
    if order.do == "unload":
        return f"{order.adapter} is forgotten, and leaves as soon as nobody needs it"
    adapters = told["data"] if order.do == "ls" else [told]
    return aligned([HEAD, *(row(adapter, now) for adapter in adapters)]) if adapters else "no adapters are known"


def row(adapter: dict[str, Any], now: float) -> list[str]:
    alias = f"{adapter['alias']} = " if adapter["alias"] else ""
    notes = [name for name in ("private", "stays") if adapter[name]]
    cells = [f"{alias}{adapter['id']}", adapter["source"], adapter["state"], adapter["requests"], adapter["loads"],
             size(adapter["bytes_on_shard"]), size(adapter["bytes_on_disk"]), ago(now - adapter["last_used"]),
             ", ".join(notes)]
    return [str(cell).translate(OBEYED) for cell in cells]


def size(num_bytes: float) -> str:
    unit, scale = next(((unit, scale) for unit, scale in UNITS if num_bytes >= scale), ("B", 1))
    return f"{num_bytes / scale:.{0 if scale == 1 else 1}f} {unit}"


def ago(seconds: float) -> str:
    unit, scale = next(((unit, scale) for unit, scale in SPANS if seconds >= scale), ("s", 1))
    return f"{max(seconds, 0) / scale:.0f} {unit} ago"


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    try:
        told = asyncio.run(ask(order, os.environ.get(API_KEY, ""), os.environ.get(ADAPTER_TOKEN, "")))
    except Failed as error:
        sys.stderr.write(f"weft: {error}\n")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    sys.stdout.write(shown(order, told, time.time()) + "\n")


if __name__ == "__main__":
    main()
