"""Checks of a server with `--compat lorax` by LoRAX's own client: `python lorax_client.py URL`."""

import asyncio
import json
import sys
from collections.abc import Callable

from lorax import AsyncClient, Client
from lorax.errors import GenerationError, NotFoundError, OverloadedError, ValidationError
from lorax.types import MergedAdapters, ResponseFormat

URL = sys.argv[1]
CLIENT = Client(URL, timeout=60)
PROMPT = "Once upon a time"
MERGED_ADAPTERS = MergedAdapters(ids=["pirate", "shout"], weights=[0.5, 0.5], merge_strategy="ties", density=0.5,
                                 majority_sign_method="total")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"],
          "additionalProperties": False}


def expect_error_message(exception_type: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def generate_text(**parameters: object) -> str:
    return CLIENT.generate(PROMPT, max_new_tokens=16, **parameters).generated_text


def check_text_generation() -> None:
    answer = CLIENT.generate(PROMPT, max_new_tokens=12, decoder_input_details=True)
    assert answer.details.generated_tokens == len(answer.details.tokens) == 12
    assert answer.details.prompt_tokens == len(answer.details.prefill) > 2
    assert answer.details.finish_reason.value == "length"
    assert generate_text(return_full_text=True) == PROMPT + generate_text() == PROMPT + generate_text(temperature=0.0)
    assert generate_text(seed=7, do_sample=True) == generate_text(seed=7, do_sample=True)
    assert len(CLIENT.generate(PROMPT, max_new_tokens=5, best_of=2, do_sample=True).details.best_of_sequences) == 1


def check_stop_conditions() -> None:
    answer = CLIENT.generate(PROMPT, max_new_tokens=60, stop_sequences=["."])
    assert answer.generated_text.endswith(".")
    assert answer.details.finish_reason.value == "stop_sequence"
    longer = CLIENT.generate("Count to five.", max_new_tokens=200, ignore_eos_token=True)
    assert longer.details.generated_tokens == 200


def check_streams() -> None:
    events = list(CLIENT.generate_stream(PROMPT, max_new_tokens=12, adapter_id="pirate"))
    assert "".join(event.token.text for event in events) == events[-1].generated_text
    assert events[-1].details.generated_tokens == 12
    assert events[-1].details.prompt_tokens > 2


def check_adapters() -> None:
    texts = {generate_text(), *(generate_text(adapter_id=name) for name in ("kjv", "pirate", "shout"))}
    assert len(texts) == 4
    assert generate_text(adapter_id="shout", adapter_source="local") == generate_text(adapter_id="shout")
    assert generate_text(merged_adapters=MERGED_ADAPTERS)
    single_adapter = MergedAdapters(ids=["shout"], weights=[1.0], merge_strategy="linear", density=0.0,
                                    majority_sign_method="total")
    assert generate_text(merged_adapters=single_adapter) == generate_text(adapter_id="shout")


def check_response_format() -> None:
    text = CLIENT.generate("Who is it?", max_new_tokens=60, adapter_id="json",
                           response_format=ResponseFormat(type="json_object", schema=SCHEMA)).generated_text
    assert [*json.loads(text)] == ["name"]


def check_alternative_tokens() -> None:
    tokens = CLIENT.generate(PROMPT, max_new_tokens=4, return_k_alternatives=3).details.tokens
    assert all(len(token.alternative_tokens) == 3 for token in tokens)


def check_concurrent_adapters() -> None:
    """Check concurrent requests that use different adapters."""
    names = (None, "kjv", "pirate", "shout")

    async def generate_concurrently() -> list[str]:
        client = AsyncClient(URL)
        return [answer.generated_text for answer in await asyncio.gather(*(
            client.generate(PROMPT, max_new_tokens=16, adapter_id=name) for name in names))]
    assert asyncio.run(generate_concurrently()) == [generate_text(adapter_id=name) for name in names]


def check_embeddings() -> None:
    """Check embeddings without an adapter: the client's `embed` has no parameter for one."""
    vector = CLIENT.embed(PROMPT).embeddings
    assert len(vector) > 8
    assert CLIENT.embed(PROMPT).embeddings == vector != CLIENT.embed("another").embeddings
    assert asyncio.run(AsyncClient(URL).embed(PROMPT)).embeddings == vector


def check_errors() -> None:
    """Check errors of the server, with requests that the client does not reject itself."""
    assert "`truncate` must be strictly positive and less than" in expect_error_message(
        ValidationError, lambda: CLIENT.generate(PROMPT, truncate=50_000))
    assert "tokens + `max_new_tokens` must be <=" in expect_error_message(
        ValidationError, lambda: list(CLIENT.generate_stream(PROMPT, max_new_tokens=50_000)))
    assert "nobody" in expect_error_message(GenerationError, lambda: CLIENT.generate(PROMPT, adapter_id="nobody"))
    assert "nobody" in expect_error_message(GenerationError,
                                            lambda: list(CLIENT.generate_stream(PROMPT, adapter_id="nobody")))
    expect_error_message(NotFoundError, lambda: Client(f"{URL}/nowhere").generate(PROMPT))
    open_streams = [CLIENT.generate_stream(PROMPT, max_new_tokens=900, temperature=1.5) for _ in range(4)]
    for stream in open_streams:
        next(stream)
    assert expect_error_message(OverloadedError, lambda: CLIENT.generate(PROMPT)) == "Model is overloaded"
    for stream in open_streams:
        stream.close()


for check in (check_text_generation, check_stop_conditions, check_streams, check_adapters, check_response_format,
              check_alternative_tokens, check_concurrent_adapters, check_embeddings, check_errors):
    check()
    sys.stdout.write(f"lorax: {check.__name__}\n")
