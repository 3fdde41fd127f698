"""Query parameters of routes: each is checked, and unknown ones are errors, so that none is ignored in silence."""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from router.errors import InvalidRequest

MAX_SHOWN_CHARACTERS = 40
MAX_DIGITS = 15

ParameterParser = Callable[[str, str], Any]  # of a parameter's name and value; raises InvalidRequest


def parse_query_parameters(request: web.Request, parsers: Mapping[str, ParameterParser]) -> dict[str, Any]:
    """Return the given parameters by name, parsed. Raises InvalidRequest."""
    values: dict[str, Any] = {}
    for name, value in request.query.items():
        if name not in parsers:
            known = f"there are {', '.join(f'`{known}`' for known in parsers)}" if parsers else "it takes none"
            raise InvalidRequest(f"{name[:MAX_SHOWN_CHARACTERS]!a} is no parameter of {request.path}; {known}")
        if name in values:
            raise InvalidRequest(f"`{name}` is given twice")
        values[name] = parsers[name](name, value)
    return values


def parse_whole_number(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > MAX_DIGITS:
        raise InvalidRequest(f"`{name}` must be a whole number from 0, got {value[:MAX_SHOWN_CHARACTERS]!a}")
    return int(value)


def make_number_parser(low: int, high: int) -> ParameterParser:
    def parse(name: str, value: str) -> int:
        number = parse_whole_number(name, value)
        if not low <= number <= high:
            raise InvalidRequest(f"`{name}` must be from {low} to {high}, got {number}")
        return number
    return parse


def make_choice_parser(*choices: str) -> ParameterParser:
    def parse(name: str, value: str) -> str:
        if value not in choices:
            raise InvalidRequest(f"`{name}` must be one of {', '.join(choices)}, got {value[:MAX_SHOWN_CHARACTERS]!a}")
        return value
    return parse


def parse_text(_: str, value: str) -> str:
    return value
