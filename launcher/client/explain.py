"""The `weft explain` command: shows what a request of a running server spent its time on."""

import asyncio
import json
import sys
from typing import Any
from urllib.parse import quote

import aiohttp

from launcher.client.adapters import align_columns
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
    """Return one line about the request, and a line per cause, the longest first: its time, share and description."""
    total_ms = explanation["total_ms"]
    summary = (f"{explanation['id']} ({explanation['state']}): {format_milliseconds(total_ms)}, "
               f"{explanation['prompt_tokens']} prompt tokens, {explanation['cached_tokens']} of them cached, "
               f"{explanation['generated_tokens']} generated")
    causes = sorted(explanation["by_cause"].items(), key=lambda item: -item[1])
    table = align_columns([[cause, format_milliseconds(ms), f"{100 * ms / total_ms if total_ms else 0:.0f} %"]
                           for cause, ms in causes])
    lines = [summary]
    for row, (cause, _) in zip(table.splitlines(), causes, strict=True):
        lines.append(f"{row}  {explanation['causes'][cause]}")
        lines += [f"  meanwhile others were in `{other}` for {format_milliseconds(ms)}: {explanation['causes'][other]}"
                  for other, ms in explanation.get("meanwhile", {}).get(cause, {}).items()]
    return "\n".join(lines).translate(REMOVED_CONTROL_CHARACTERS | {ord("\n"): "\n"})


def format_milliseconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds:.1f} ms"


def run_explain_command(url: str, request_id: str, api_key: str, *, as_json: bool) -> int:
    """Print the explanation. Return 1 if the server does not know the request or cannot be reached."""
    try:
        explanation = asyncio.run(fetch_explanation(url, request_id, api_key))
    except ChatRequestFailed as error:
        sys.stderr.write(f"weft: {error}\n")
        return 1
    sys.stdout.write((json.dumps(explanation, indent=2) if as_json else format_explanation(explanation)) + "\n")
    return 0
