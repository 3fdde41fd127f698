"""Checks of a server with LangChain's packages for OpenAI, Anthropic and Ollama: `python langchain_client.py URL`."""

import sys
from collections.abc import Callable

import anthropic
import ollama
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

URL = sys.argv[1]
OPENAI = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
COUNTED = "1, 2, 3, 4, 5."


@tool
def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    return f"sunny in {city}"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)


def make_models(temperature: float = 0, model: str = "weft/demo") -> dict[str, BaseChatModel]:
    """Return a model for each API that LangChain speaks."""
    anthropic_options = {"anthropic_api_url": URL, "api_key": "none", "max_retries": 0, "max_tokens": 60}
    return {
        "chats": ChatOpenAI(model=model, temperature=temperature, stream_usage=True, **OPENAI),
        "responses": ChatOpenAI(model=model, temperature=temperature, use_responses_api=True, **OPENAI),
        "messages": ChatAnthropic(model=model, temperature=temperature, **anthropic_options),
        "ollama": ChatOllama(model=model, temperature=temperature, base_url=URL)}


def expect_error(exception_type: type[Exception], call: Callable[[], object]) -> str:
    """Return the message of the exception that the client raises."""
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_chats() -> None:
    """Check the text and the numbers of tokens, and that those of a stream are the same."""
    for name, model in make_models().items():
        answer = model.invoke("Count to five.")
        assert answer.text == COUNTED, name
        usage = answer.usage_metadata
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (12, 15, 27), name
        pieces = list(model.stream("Count to five."))
        assert len(pieces) > 5, name
        whole = sum(pieces[1:], pieces[0])
        assert isinstance(whole, AIMessageChunk), name
        assert (whole.text, whole.usage_metadata["total_tokens"]) == (COUNTED, 27), name
    assert [answer.text for answer in make_models()["chats"].batch(["Count to five."] * 3)] == [COUNTED] * 3


def check_tools() -> None:
    """Check a call, the same call in a stream, one that is required, and an answer to the result."""
    question = HumanMessage("What is the weather in Paris?")
    for name, model in make_models().items():
        for choice in ({}, {"tool_choice": "any"}) if name != "ollama" else ({},):
            bound = model.bind_tools([get_weather], **choice)
            answer = bound.invoke([question])
            [call] = answer.tool_calls
            assert (call["name"], {*call["args"]}) == ("get_weather", {"city"}), name
            pieces = list(bound.stream([question]))
            [streamed] = sum(pieces[1:], pieces[0]).tool_calls
            assert (streamed["name"], streamed["args"]) == (call["name"], call["args"]), name
        result = get_weather.invoke(call)
        assert isinstance(result, ToolMessage)
        assert model.bind_tools([get_weather]).invoke([question, answer, result]).usage_metadata, name


def check_structured_output() -> None:
    for name, model in make_models().items():
        for method in ("json_schema", "function_calling")[:1 if name == "ollama" else 2]:  # Ollama requires no calls
            person = model.with_structured_output(Person, method=method).invoke("Who is it?")
            assert isinstance(person, Person), (name, method)
    person = make_models()["chats"].with_structured_output(Person, include_raw=True).invoke("Who is it?")
    assert (person["parsing_error"], type(person["parsed"])) == (None, Person)


def check_completions() -> None:
    model = OpenAI(model="weft/demo", temperature=0, max_tokens=12, **OPENAI)
    assert model.invoke("Once upon a time") == "".join(model.stream("Once upon a time")) != ""


def check_embeddings() -> None:
    model = OpenAIEmbeddings(model="weft/demo", check_embedding_ctx_length=False, **OPENAI)
    assert [len(vector) for vector in model.embed_documents(["a", "b"])] == [256, 256]
    assert len(OllamaEmbeddings(model="weft/demo", base_url=URL).embed_query("a")) == 256


def check_errors() -> None:
    """Check that the server's reason is in the exception."""
    errors = {"chats": openai.BadRequestError, "responses": openai.BadRequestError,
              "messages": anthropic.BadRequestError, "ollama": ollama.ResponseError}
    for name, model in make_models(temperature=-1).items():
        for call in (model.invoke, lambda text, model=model: list(model.stream(text))):
            message = expect_error(errors[name], lambda call=call: call("Hi"))
            assert "`temperature` must be at least 0, got -1.0" in message, name
    for name in ("chats", "responses", "messages"):
        message = expect_error(ContextOverflowError, lambda name=name: make_models()[name].invoke("word " * 5000))
        assert "2047 tokens" in message or "2048" in message, name
    missing = expect_error(openai.NotFoundError, lambda: make_models(model="org/nobody")["chats"].invoke("Hi"))
    assert "this server has no model 'org/nobody'" in missing


for check in (check_chats, check_tools, check_structured_output, check_completions, check_embeddings, check_errors):
    check()
    sys.stdout.write(f"langchain: {check.__name__}\n")
