"""The `weft explain` command: shows what a request of a running server spent its time on, or lists the latest ones."""

import asyncio
import json
import sys
from typing import Any
from urllib.parse import quote

import aiohttp

from launcher.client.chat_client import ChatRequestFailed, check_status, translate_connection_errors
from launcher.client.terminal_chat import REMOVED_CONTROL_CHARACTERS
from launcher.console_output import align_columns

CLIENT_TIMEOUT = aiohttp.ClientTimeout(total=30)
TABLE_HEADER = ["request", "state", "time", "prompt", "cached", "generated", "most of it"]


async def fetch_explanation(url: str, request_id: str, api_key: str) -> dict[str, Any]:
    """Return the JSON of the server's explanation, or without an id of its list of requests. `url` may end with /v1, as
    the base URL of other clients does. Raises ChatRequestFailed."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    path = f"/{quote(request_id, safe='')}/explain" if request_id else ""
    route_url = f"{url.rstrip('/').removesuffix('/v1')}/v1/requests{path}"
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
    lines = [f"{explanation['id']} ({format_state(explanation)}): {format_duration_ms(total_ms)}, "
             f"{explanation['prompt_tokens']} prompt tokens, {explanation['cached_tokens']} of them cached, "
             f"{explanation['generated_tokens']} generated{format_time_per_token(explanation)}"]
    width = max(map(len, explanation["by_cause"]), default=0)
    for cause, ms in sorted(explanation["by_cause"].items(), key=lambda item: -item[1]):
        share = 100 * ms / total_ms if total_ms else 0.0
        lines.append(f"{cause:<{width}}  {format_duration_ms(ms):>9}  {share:3.0f} %  {explanation['causes'][cause]}")
        lines += [f"{'':<{width}}  {format_duration_ms(other_ms):>9}  of it: {explanation['meanwhile_causes'][other]}"
                  for other, other_ms in explanation["meanwhile"].get(cause, {}).items()]
    prompts = ", ".join(f"{prompt['id']} ({prompt['prompt_tokens']} tokens"
                        + (f", {cached} of them cached" if (cached := prompt.get("cached_tokens")) else "")
                        + f", {format_duration_ms(prompt['ms'])})" for prompt in explanation["meanwhile_prompts"])
    lines += [f"longest prompts of other requests in this time: {prompts}"] * bool(prompts)
    if num_generating := explanation.get("meanwhile_generating"):  # older servers do not say
        lines.append(f"on average {num_generating} other sequences were generated at the same time")
    return "\n".join(" ".join(line.translate(REMOVED_CONTROL_CHARACTERS).splitlines()) for line in lines)


def format_time_per_token(explanation: dict[str, Any]) -> str:
    """Return the mean time in decodes for each token after the first, if there are such tokens."""
    if explanation["generated_tokens"] < 2 or not (ms := explanation["by_cause"].get("decode")):
        return ""
    return f" (one every {format_duration_ms(ms / (explanation['generated_tokens'] - 1))})"


def format_requests(requests: list[dict[str, Any]]) -> str:
    """Return a table with one line per request, the latest first, and with the cause that took most of its time."""
    if not requests:
        return "no requests yet, or none of this key"
    rows = [[request["id"], format_state(request), format_duration_ms(request["total_ms"]),
             str(request["prompt_tokens"]), str(request["cached_tokens"]), str(request["generated_tokens"]),
             format_longest_cause(request["by_cause"])]
            for request in requests]
    cells = [[" ".join(cell.translate(REMOVED_CONTROL_CHARACTERS).split()) for cell in row] for row in rows]
    return align_columns([TABLE_HEADER, *cells], left_columns=(0, 1, len(TABLE_HEADER) - 1))


def format_state(request: dict[str, Any]) -> str:
    """Return the state, and why the request failed or was refused if it was."""
    return f"{request['state']}, {request['error_type']}" if request.get("error_type") else str(request["state"])


def format_longest_cause(ms_by_cause: dict[str, float]) -> str:
    cause = max(ms_by_cause, key=ms_by_cause.__getitem__)
    return f"{cause} {format_duration_ms(ms_by_cause[cause])}"


def format_duration_ms(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds:.1f} ms"


def run_explain_command(url: str, request_id: str, api_key: str, *, as_json: bool) -> int:
    """Print the explanation, or without an id the list of requests. Return 1 if the server does not know the request or
    cannot be reached."""
    try:
        explanation = asyncio.run(fetch_explanation(url, request_id, api_key))
        text = (json.dumps(explanation, indent=2) if as_json else format_explanation(explanation) if request_id
                else format_requests(explanation["requests"]))
    except ChatRequestFailed as error:
        sys.stderr.write(f"weft: {error}\n".translate(REMOVED_CONTROL_CHARACTERS))
        return 1
    except (LookupError, TypeError, AttributeError, ValueError):
        sys.stderr.write(f"weft: {url} answers in another format; is it weft, and of this version?\n")
        return 1
    sys.stdout.write(text + "\n")
    return 0
