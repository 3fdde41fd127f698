"""Fields of chats and completions that constrain the output, as vLLM has them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import FailFast, Field

from router.errors import InvalidRequest
from router.grammars.parameters import STRUCTURED_OUTPUT_READERS, Grammar, parse_single_grammar
from router.http.transport.body import NOT_GIVEN, LenientBodyModel

# Older fields for a constraint, and which one of `structured_outputs` each is.
GUIDED_FIELDS: Mapping[str, str] = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
                                    "guided_grammar": "grammar"}
CONSTRAINT_FIELDS = frozenset({"structured_outputs", *GUIDED_FIELDS})


class StructuredOutputs(LenientBodyModel):
    """vLLM's constraint of the output: one of these."""

    ignored_fields = frozenset({"disable_fallback"})
    refused_fields = dict.fromkeys(("disable_additional_properties", "disable_any_whitespace", "structural_tag",
                                    "whitespace_pattern"), NOT_GIVEN)

    json_schema: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str] | None, FailFast()] = None
    grammar: str | None = None
    json_object: bool | None = None

    def to_grammar(self, parameter: str) -> Grammar:
        self.check_refused_fields(f"{parameter}.")
        fields = self.model_dump(by_alias=True, exclude={*(self.model_extra or ())})
        given = {name: value for name, value in fields.items()
                 if value is not None and not (name == "json_object" and value is False)}
        if len(given) != 1:
            raise InvalidRequest(f"`{parameter}` must have exactly one of {', '.join(STRUCTURED_OUTPUT_READERS)}, got "
                                 f"{', '.join(given) or 'none'}")
        [(name, value)] = given.items()
        return STRUCTURED_OUTPUT_READERS[name](f"{parameter}.{name}", value)


class StructuredOutputRequest(LenientBodyModel):
    """Base class of bodies with these fields."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str] | None, FailFast()] = None
    guided_grammar: str | None = None

    def list_given_constraints(self) -> list[str]:
        return [name for name in CONSTRAINT_FIELDS if getattr(self, name) is not None]

    def find_grammar(self, read_response_format: Callable[[str], Grammar | None] | None) -> tuple[str, Grammar] | None:
        """Return the parameter that constrains the output, and its grammar; None without one. `read_response_format`
        reads a `response_format`, if there is one. Raises InvalidRequest."""
        readers: dict[str, Callable[[str], Grammar | None]] = {}
        if read_response_format is not None:
            readers["response_format"] = read_response_format
        if self.structured_outputs is not None:
            readers["structured_outputs"] = self.structured_outputs.to_grammar
        for name, kind in GUIDED_FIELDS.items():
            if (value := getattr(self, name)) is not None:
                readers[name] = partial(_read_guided_field, kind=kind, value=value)
        return parse_single_grammar(readers)


def _read_guided_field(parameter: str, *, kind: str, value: object) -> Grammar:
    return STRUCTURED_OUTPUT_READERS[kind](parameter, value)
