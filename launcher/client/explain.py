"""The `weft explain` command: shows what a request of a running server spent its time on."""

import asyncio
import json
import sys
from typing import Any
from urllib.parse import quote

import aiohttp

from launcher.client.chat import ChatRequestFailed, check_status, translate_connection_errors
from launcher.client.terminal import REMOVED_CONTROL_CHARACTERS

CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=30)


async def fetch_explanation(url: str, request_id: str, api_key: str) -> dict[str, Any]:
    """Return the JSON of the server's explanation. `url` may end with /v1, as the base URL of other clients does.
    Raises ChatRequestFailed."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    route_url = f"{url.rstrip('/').removesuffix('/v1')}/v1/requests/{quote(request_id, safe='')}/explain"
    with translate_connection_errors(url):
        async with (aiohttp.ClientSession(timeout=CLIENT_TIMEOUT, headers=headers) as session,
                    session.get(route_url) as response):
            await check_status(response)
            explanation: dict[str, Any] = await response.json()
    return explanation


def format_explanation(explanation: dict[str, Any]) -> str:
    """Return one line about the request, and a line per cause, the longest first: its time, share and description.
    Under it stands what others did meanwhile."""
    total_ms = explanation["total_ms"]
    lines = [f"{explanation['id']} ({explanation['state']}): {format_milliseconds(total_ms)}, "
             f"{explanation['prompt_tokens']} prompt tokens, {explanation['cached_tokens']} of them cached, "
             f"{explanation['generated_tokens']} generated"]
    width = max(map(len, explanation["by_cause"]), default=0)
    for cause, ms in sorted(explanation["by_cause"].items(), key=lambda item: -item[1]):
        share = 100 * ms / total_ms if total_ms else 0.0
        lines.append(f"{cause:<{width}}  {format_milliseconds(ms):>9}  {share:3.0f} %  {explanation['causes'][cause]}")
        lines += [f"{'':<{width}}  {format_milliseconds(other_ms):>9}  of it: {explanation['meanwhile_causes'][other]}"
                  for other, other_ms in explanation["meanwhile"].get(cause, {}).items()]
    return "\n".join(" ".join(line.translate(REMOVED_CONTROL_CHARACTERS).splitlines()) for line in lines)


def format_milliseconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds:.1f} ms"


def run_explain_command(url: str, request_id: str, api_key: str, *, as_json: bool) -> int:
    """Print the explanation. Return 1 if the server does not know the request or cannot be reached."""
    try:
        explanation = asyncio.run(fetch_explanation(url, request_id, api_key))
        text = json.dumps(explanation, indent=2) if as_json else format_explanation(explanation)
    except ChatRequestFailed as error:
        sys.stderr.write(f"weft: {error}\n".translate(REMOVED_CONTROL_CHARACTERS))
        return 1
    except (LookupError, TypeError, AttributeError, ValueError):
        sys.stderr.write(f"weft: {url} answers in another format; is it weft, and of this version?\n")
        return 1
    sys.stdout.write(text + "\n")
    return 0
