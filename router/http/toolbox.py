"""Tools as clients of OpenAI and of text-generation-inference offer them, and calls as they repeat them.

Turns foreign JSON into what chat templates take. Knows nothing of how a model calls.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from router.errors import ToolsFailed
from router.http.body import Foreign


class Given(Foreign):
    """Reaches the template as it came, with fields that are unknown here."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Function(Given):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Given):
    type: Literal["function"] = "function"
    function: Function


class Named(Foreign):
    name: Annotated[str, Field(min_length=1)]


class NamedTool(Foreign):
    function: Named


def object_of(arguments: object) -> object:
    """Clients repeat the text that they were told, templates take the object that it stands for."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    return found if isinstance(found, dict) else arguments


class CalledFunction(Given):
    name: str
    arguments: Annotated[dict[str, Any] | str, BeforeValidator(object_of)] = ""


class ToolCall(Given):
    function: CalledFunction


def called_name(choice: str | NamedTool | None) -> str:
    """The tool that must be called, or `auto`, `none` or `required`."""
    return choice.function.name if isinstance(choice, NamedTool) else choice or "auto"


def offered(tools: list[Tool] | None, choice: str | NamedTool | None) -> tuple[dict[str, Any], ...]:
    """As templates take them. Raises ToolsFailed for a choice that there is not."""
    name, names = called_name(choice), [tool.function.name for tool in tools or ()]
    if name not in {"auto", "none", "required", *names}:
        raise ToolsFailed(f"`tool_choice` must be `auto`, `none`, `required` or one of the tools "
                          f"({', '.join(names) or 'there are none'}), got {name}")
    if name == "none":
        return ()
    if name != "auto" and names:
        raise ToolsFailed("`tool_choice` must be `auto` or `none`: that a model must call is not served yet")
    return tuple(tool.model_dump(exclude_unset=True) for tool in tools or ())
