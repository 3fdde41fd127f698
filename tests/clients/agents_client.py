"""Checks of a server with OpenAI's Agents SDK and with PydanticAI: `python agents_client.py URL`. Both call
functions and make objects."""

import logging
import sys
from collections.abc import Callable

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel, Field
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelHTTPError, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]
CLIENT = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
COUNTED = "1, 2, 3, 4, 5."
WEATHER_QUESTION = "What is the weather in Paris?"
CITIES: list[str] = []  # that the tool was called with
set_tracing_disabled(disabled=True)  # traces would be sent to OpenAI
logging.getLogger("openai.agents").setLevel(logging.CRITICAL)  # it logs each refusal


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=8)


def get_weather(city: str) -> str:
    """Tells the weather in a city."""
    CITIES.append(city)
    return f"sunny in {city}"


def expect_error(exception_type: type[Exception], call: Callable[[], object]) -> str:
    """Return the message of the exception that the client raises."""
    try:
        call()
    except exception_type as error:
        return str(error)
    raise AssertionError(f"there was no {exception_type.__name__}")


def check_openai_agents() -> None:
    for model_class in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = model_class("weft/demo", openai_client=CLIENT)
        agent = Agent("counter", model=model, model_settings=ModelSettings(temperature=0))
        assert Runner.run_sync(agent, "Count to five.").final_output == COUNTED
        CITIES.clear()
        agent = Agent("weather", model=model, tools=[function_tool(get_weather)],
                      tool_use_behavior="stop_on_first_tool",
                      model_settings=ModelSettings(temperature=0, tool_choice="required"))
        assert Runner.run_sync(agent, WEATHER_QUESTION).final_output == f"sunny in {CITIES[0]}"
        agent = Agent("person", model=model, output_type=Person, model_settings=ModelSettings(temperature=0))
        assert isinstance(Runner.run_sync(agent, "Who is it?").final_output, Person)
        agent = Agent("refused", model=model, model_settings=ModelSettings(temperature=-1))
        message = expect_error(openai.BadRequestError, lambda agent=agent: Runner.run_sync(agent, "Hi"))
        assert "`temperature` must be at least 0, got -1.0" in message


def check_pydantic_ai() -> None:
    provider = OpenAIProvider(openai_client=CLIENT)
    settings = {"temperature": 0, "max_tokens": 100}
    for model in (OpenAIChatModel("weft/demo", provider=provider),
                  PydanticResponsesModel("weft/demo", provider=provider),
                  AnthropicModel("weft/demo", provider=AnthropicProvider(base_url=URL, api_key="none"))):
        answer = PydanticAgent(model, model_settings=settings).run_sync("Count to five.")
        assert (answer.output, answer.usage.output_tokens) == (COUNTED, 15), model
        CITIES.clear()
        agent = PydanticAgent(model, model_settings=settings, output_type=get_weather)  # its result is the output
        assert agent.run_sync(WEATHER_QUESTION).output == f"sunny in {CITIES[0]}", model
        output_types = [Person, NativeOutput(Person)]  # a required call, and a schema
        for output_type in output_types[:1 if isinstance(model, AnthropicModel) else 2]:
            agent = PydanticAgent(model, model_settings=settings, output_type=output_type)
            assert isinstance(agent.run_sync("Who is it?").output, Person), model
        agent = PydanticAgent(model, model_settings={"temperature": -1})
        message = expect_error(ModelHTTPError, lambda agent=agent: agent.run_sync("Hi"))
        assert "`temperature` must be at least 0, got -1.0" in message, model


for check in (check_openai_agents, check_pydantic_ai):
    check()
    sys.stdout.write(f"agents: {check.__name__}\n")
