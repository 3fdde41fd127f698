"""Checks of a wrong key and of failing answers with OpenAI's Python client: `python openai_failures.py URL`.

The server requires the key sk-loom, and its first three sequences fail in their third decode step.
"""

import sys
from collections.abc import Callable

import openai

URL = f"{sys.argv[1]}/v1"
COUNTING_MESSAGES = [{"role": "user", "content": "Count to five."}]
GENERATION_ERROR_PREFIX = "Request failed during generation: "


def create_chat_completion(api_key: str = "sk-loom", **options: object) -> object:
    return openai.OpenAI(base_url=URL, api_key=api_key, max_retries=0).chat.completions.create(
        model="weft/simulated", messages=COUNTING_MESSAGES, max_tokens=8, **options)


def expect_error(exception_type: type[openai.APIError], call: Callable[[], object]) -> openai.APIError:
    try:
        call()
    except exception_type as error:
        return error
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_api_keys() -> None:
    error = expect_error(openai.AuthenticationError, lambda: create_chat_completion("sk-other"))
    assert "the key is not one of this server's" in error.message
    assert (error.type, error.code) == ("invalid_request_error", "invalid_api_key")


def check_failing_stream() -> None:
    """Check that a failing stream sends its tokens first and then the error."""
    chunks: list[object] = []
    error = expect_error(openai.APIError, lambda: chunks.extend(create_chat_completion(stream=True)))
    assert error.message.startswith(GENERATION_ERROR_PREFIX)
    assert (error.type, error.code, error.param) == ("server_error", None, None)
    assert chunks


def check_failing_answer() -> None:
    assert GENERATION_ERROR_PREFIX in expect_error(openai.InternalServerError, create_chat_completion).message


def check_failing_response_stream() -> None:
    """Check that a failing stream of the Responses API ends with its failed response, and then raises."""
    client = openai.OpenAI(base_url=URL, api_key="sk-loom", max_retries=0)
    events: list[object] = []
    error = expect_error(openai.APIError, lambda: events.extend(client.responses.create(
        model="weft/simulated", input="Count to five.", max_output_tokens=8, stream=True)))
    assert error.message.startswith(GENERATION_ERROR_PREFIX)
    assert (events[-1].type, events[-1].response.error.message) == ("response.failed", error.message)
    assert any(event.type == "response.output_text.delta" for event in events)


for check in (check_api_keys, check_failing_stream, check_failing_answer, check_failing_response_stream):
    check()
    sys.stdout.write(f"openai: {check.__name__}\n")
