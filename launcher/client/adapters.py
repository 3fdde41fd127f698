"""The `weft adapters` command: lists, loads and unloads adapters of a running server."""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

from launcher.client.chat_client import ChatRequestFailed, check_status, translate_connection_errors
from launcher.client.terminal_chat import REMOVED_CONTROL_CHARACTERS
from launcher.console_output import align_columns, format_bytes

# No total or read timeout: fetching and loading may take any time, and the server sends nothing meanwhile.
CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
TABLE_HEADER = ["adapter", "source", "state", "running", "loads", "on a shard", "on disk", "last used", ""]
TIME_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


@dataclass(frozen=True, slots=True)
class AdaptersCommand:
    """One `weft adapters` command and the HTTP request that carries it out."""

    do: str  # ls, load or unload
    url: str
    adapter: str = ""
    source: str = ""
    alias: str = ""
    as_json: bool = False

    @property
    def route_url(self) -> str:
        """URL of the route. `url` may end with /v1, as the base URL of other clients does."""
        path = f"/{quote(self.adapter)}" if self.do == "unload" else ""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/adapters{path}"

    def request_body(self, source_token: str) -> dict[str, Any] | None:
        if self.do != "load":
            return None
        optional_fields = {"source": self.source, "api_token": source_token, "alias": self.alias}
        return {"id": self.adapter, **{name: value for name, value in optional_fields.items() if value}}


HTTP_METHODS = {"ls": "GET", "load": "POST", "unload": "DELETE"}


async def send_command(command: AdaptersCommand, api_key: str = "", source_token: str = "") -> dict[str, Any]:
    """Send the command and return the JSON of the response. Raises ChatRequestFailed."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with translate_connection_errors(command.url):
        async with (aiohttp.ClientSession(timeout=CLIENT_TIMEOUT, headers=headers) as session,
                    session.request(HTTP_METHODS[command.do], command.route_url,
                                    json=command.request_body(source_token)) as response):
            await check_status(response)
            answer: dict[str, Any] = await response.json()
    return answer


def format_answer(command: AdaptersCommand, answer: dict[str, Any], now: float) -> str:
    if command.as_json:
        return json.dumps(answer, indent=2)
    if command.do == "unload":
        return f"{command.adapter} is removed; it is unloaded when no request uses it"
    adapters = answer["data"] if command.do == "ls" else [answer]
    return (align_columns([TABLE_HEADER, *(adapter_row(adapter, now) for adapter in adapters)]) if adapters
            else "no adapter has been used or loaded yet; /v1/models lists those that requests can name")


def adapter_row(adapter: dict[str, Any], now: float) -> list[str]:
    alias = f"{adapter['alias']} = " if adapter["alias"] else ""
    notes = [name for name in ("private", "stays") if adapter[name]]
    cells = [f"{alias}{adapter['id']}", adapter["source"], adapter["state"], adapter["requests"], adapter["loads"],
             format_bytes(adapter["bytes_on_shard"]), format_bytes(adapter["bytes_on_disk"]),
             format_age(now - adapter["last_used"]), ", ".join(notes)]
    return [str(cell).translate(REMOVED_CONTROL_CHARACTERS) for cell in cells]


def format_age(seconds: float) -> str:
    unit, scale = next(((unit, scale) for unit, scale in TIME_UNITS if seconds >= scale), ("s", 1))
    return f"{max(seconds, 0) / scale:.0f} {unit} ago"


def run_adapters_command(command: AdaptersCommand, api_key: str, source_token: str) -> int:
    """Carry out the command and print the answer. Return 1 if the server rejects it or cannot be reached."""
    try:
        answer = asyncio.run(send_command(command, api_key, source_token))
    except ChatRequestFailed as error:
        sys.stderr.write(f"weft: {error}\n".translate(REMOVED_CONTROL_CHARACTERS))
        return 1
    sys.stdout.write(format_answer(command, answer, time.time()) + "\n")
    return 0
