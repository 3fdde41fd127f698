"""Checks of a server with text-generation's own client: `python text_generation_client.py URL`.

Streamed chats are left out: the client parses `[DONE]` as JSON and fails with TGI's own server too.
"""

import sys
from collections.abc import Callable

from text_generation import Client
from text_generation.errors import ValidationError

CLIENT = Client(sys.argv[1], timeout=60)
PROMPT = "Once upon a time"


def expect_error_message(exception_type: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_text_generation() -> None:
    answer = CLIENT.generate(PROMPT, max_new_tokens=12, decoder_input_details=True)
    assert answer.details.generated_tokens == len(answer.details.tokens) == 12
    assert answer.details.finish_reason.value == "length"
    assert len(answer.details.prefill) > 2
    assert answer.details.seed is None
    sampled = [CLIENT.generate(PROMPT, max_new_tokens=12, do_sample=True, seed=7) for _ in range(2)]
    assert sampled[0].generated_text == sampled[1].generated_text


def check_best_of() -> None:
    answer = CLIENT.generate(PROMPT, max_new_tokens=12, best_of=2, do_sample=True)
    assert len(answer.details.best_of_sequences) == 1


def check_stop_sequences() -> None:
    answer = CLIENT.generate(PROMPT, max_new_tokens=60, stop_sequences=["."])
    assert answer.generated_text.endswith(".")
    assert answer.details.finish_reason.value == "stop_sequence"


def check_streams() -> None:
    events = list(CLIENT.generate_stream(PROMPT, max_new_tokens=12))
    assert "".join(event.token.text for event in events) == events[-1].generated_text.removeprefix(PROMPT)
    assert events[-1].details.generated_tokens == 12


def check_chats() -> None:
    answer = CLIENT.chat(messages=[{"role": "user", "content": "Count to five."}], seed=1, max_tokens=40)
    assert answer.choices[0].message.content


def check_errors() -> None:
    """Check an error of the server, with a request that the client does not reject itself."""
    assert "truncate" in expect_error_message(ValidationError, lambda: CLIENT.generate(PROMPT, truncate=5000))


for check in (check_text_generation, check_best_of, check_stop_sequences, check_streams, check_chats, check_errors):
    check()
    sys.stdout.write(f"text-generation: {check.__name__}\n")
