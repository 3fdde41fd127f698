"""Words for what pydantic finds wrong in a body or a file: the rule, and the value that breaks it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SHOWN_CHARACTERS = 64
# Parts of locations that name no field or index, but a kind of value that a field may have.
ALTERNATIVE_PATTERN = re.compile(r"(str|int|float|bool|(list|dict|tuple)\b.*|function-.*)")  # `function` is a field

# What must hold, by pydantic's type of error. pydantic's own text is used for the others.
RULES = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must have one of {expected_tags} as {discriminator}",
    "union_tag_not_found": "must have {discriminator}",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
}
LENGTH_ERRORS = {"string_too_short", "string_too_long", "too_short", "too_long"}


def describe_first_error(errors: Sequence[Mapping[str, Any]], *, shows_strings: bool = True,
                         ) -> tuple[tuple[str | int, ...], str]:
    """Return the location of the first of `ValidationError.errors()`, and what is wrong there. A value that may be of
    several kinds has an error for each; their rules are joined. Without `shows_strings` no string is shown: it might
    be a secret."""
    first, location = errors[0], strip_alternatives(errors[0]["loc"])
    if first["type"] not in RULES:
        return location, str(first["msg"])
    same_place = [error for error in errors
                  if error["type"] in RULES and strip_alternatives(error["loc"]) == location]
    first_rule, *rules = dict.fromkeys(map(format_rule, same_place))
    rule = " or ".join([first_rule, *(rule.removeprefix("must be ") for rule in rules)])
    return location, rule if first["type"] == "missing" else (
        f"{rule}, got {describe_input(first, shows_string=shows_strings)}")


def strip_alternatives(location: Sequence[str | int]) -> tuple[str | int, ...]:
    return tuple(part for part in location if isinstance(part, int) or not ALTERNATIVE_PATTERN.fullmatch(part))


def format_rule(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    rule = RULES[error["type"]].format_map(context)
    return rule.removesuffix("s") if 1 in {context.get("min_length"), context.get("max_length")} else rule


def describe_input(error: Mapping[str, Any], *, shows_string: bool) -> str:
    """Describe the value that breaks a rule; where the rule is about a length, by its length."""
    context = error.get("ctx", {})
    if error["type"] in LENGTH_ERRORS:
        return str(context["actual_length"] if "actual_length" in context else len(error["input"]))
    if error["type"] == "union_tag_invalid":
        return describe_value(context["tag"], shows_string=shows_string)
    return describe_value(error["input"], shows_string=shows_string)


def describe_value(value: object, *, shows_string: bool = False) -> str:
    """Return a number, true, false or null as JSON, the beginning of a string if that may be shown, and else only the
    type."""
    if value is None or isinstance(value, int | float):
        return json.dumps(value)[:MAX_SHOWN_CHARACTERS]
    if isinstance(value, str):
        if not shows_string:
            return "a string"
        return ascii(value) if len(value) <= MAX_SHOWN_CHARACTERS else f"{value[:MAX_SHOWN_CHARACTERS]!a}..."
    return "an object" if isinstance(value, Mapping) else "an array" if isinstance(value, Sequence) else "another type"
