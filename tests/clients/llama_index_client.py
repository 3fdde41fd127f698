"""Checks of a server with LlamaIndex: `python llama_index_client.py URL`."""

import sys
from collections.abc import Callable

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel, Field

COUNTING_MESSAGES = [ChatMessage("Count to five.", role="user")]
COUNTED = "1, 2, 3, 4, 5."
OPTIONS = {"model": "weft/demo", "api_base": f"{sys.argv[1]}/v1", "api_key": "none", "max_retries": 0}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)


def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"sunny in {city}"


def make_model(**options: object) -> OpenAILike:
    chat_options = {"is_chat_model": True, "is_function_calling_model": True, "temperature": 0}
    return OpenAILike(**OPTIONS | chat_options | options)


def expect_error(exception_type: type[Exception], call: Callable[[], object]) -> str:
    """Return the message of the exception that the client raises."""
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_chats() -> None:
    """Check the text and the number of tokens, and the same text in a stream."""
    answer = make_model().chat(COUNTING_MESSAGES)
    assert (answer.message.content, answer.raw.usage.total_tokens) == (COUNTED, 27)
    pieces = list(make_model().stream_chat(COUNTING_MESSAGES))
    assert "".join(piece.delta or "" for piece in pieces) == pieces[-1].message.content == COUNTED
    assert len(pieces) > 5


def check_completions() -> None:
    model = make_model(is_chat_model=False, max_tokens=12)
    whole = model.complete("Once upon a time").text
    assert "".join(piece.delta for piece in model.stream_complete("Once upon a time")) == whole != ""
    assert make_model().complete("Count to five.").text == COUNTED  # as a chat


def check_responses() -> None:
    model = OpenAILikeResponses(temperature=0, is_function_calling_model=True, context_window=2048, **OPTIONS)
    assert model.chat(COUNTING_MESSAGES).message.content == COUNTED
    assert "".join(piece.delta or "" for piece in model.stream_chat(COUNTING_MESSAGES)) == COUNTED


def check_tools() -> None:
    """Check a call, one that is required, the same in a stream, and a whole turn: call, result, answer."""
    tool = FunctionTool.from_defaults(get_weather)
    for is_required in (False, True):
        model, question = make_model(), "What is the weather in Paris?"
        answer = model.chat_with_tools([tool], question, tool_required=is_required)
        [call] = model.get_tool_calls_from_response(answer)
        assert (call.tool_name, {*call.tool_kwargs}) == ("get_weather", {"city"})
        *_, last = model.stream_chat_with_tools([tool], question, tool_required=is_required)
        [streamed] = model.get_tool_calls_from_response(last)
        assert streamed.tool_kwargs == call.tool_kwargs
    assert f"sunny in {call.tool_kwargs['city']}" in str(model.predict_and_call([tool], question))


def check_structured_output() -> None:
    for is_json_schema in (False, True):  # else a required call
        person = make_model(should_use_structured_outputs=is_json_schema).as_structured_llm(Person).complete("Who?").raw
        assert isinstance(person, Person)


def check_embeddings() -> None:
    model = OpenAILikeEmbedding(model_name="weft/demo", api_base=OPTIONS["api_base"], api_key="none")
    assert [len(vector) for vector in model.get_text_embedding_batch(["a", "b"])] == [256, 256]


def check_errors() -> None:
    """Check that the server's reason is in the exception."""
    model = make_model(additional_kwargs={"top_p": 2})
    for call in (model.chat, lambda messages: list(model.stream_chat(messages))):
        message = expect_error(openai.BadRequestError, lambda call=call: call(COUNTING_MESSAGES))
        assert "`top_p` must be" in message
    missing = expect_error(openai.NotFoundError, lambda: make_model(model="org/nobody").chat(COUNTING_MESSAGES))
    assert "this server has no model 'org/nobody'" in missing


for check in (check_chats, check_completions, check_responses, check_tools, check_structured_output, check_embeddings,
              check_errors):
    check()
    sys.stdout.write(f"llama-index: {check.__name__}\n")
