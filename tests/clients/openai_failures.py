"""Checks of a wrong key and of failing answers with OpenAI's Python client: `python openai_failures.py URL`.

The server requires the key sk-loom, and its first two sequences fail in their third decode step.
"""

import sys
from collections.abc import Callable

import openai

URL = f"{sys.argv[1]}/v1"
HELLO = [{"role": "user", "content": "Count to five."}]
FAILED = "Request failed during generation: "


def create(key: str = "sk-loom", **given: object) -> object:
    return openai.OpenAI(base_url=URL, api_key=key, max_retries=0).chat.completions.create(
        model="weft/simulated", messages=HELLO, max_tokens=8, **given)


def raised(kind: type[openai.APIError], call: Callable[[], object]) -> openai.APIError:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"there was no {kind.__name__}")


def keys() -> None:
    error = raised(openai.AuthenticationError, lambda: create("sk-other"))
    assert "a key is needed" in error.message
    assert (error.type, error.code) == ("invalid_request_error", "invalid_api_key")


def streams() -> None:
    """Check that a failing stream sends its tokens first and then the error."""
    heard: list[object] = []
    error = raised(openai.APIError, lambda: heard.extend(create(stream=True)))
    assert error.message.startswith(FAILED)
    assert (error.type, error.code, error.param) == ("server_error", None, None)
    assert heard


def answers() -> None:
    assert FAILED in raised(openai.InternalServerError, create).message


for check in (keys, streams, answers):
    check()
    sys.stdout.write(f"openai: {check.__name__}\n")
