"""Query parameters: each is checked, none is ignored."""

import pytest
from aiohttp.test_utils import make_mocked_request

from router.errors import InvalidRequest
from router.http.transport.query_parameters import (
    make_choice_parser,
    make_number_parser,
    parse_query_parameters,
    parse_text,
    parse_whole_number,
)

PARSERS = {"since": parse_whole_number, "limit": make_number_parser(1, 500), "state": make_choice_parser("a", "b"),
           "name": parse_text}


def read(query):
    return parse_query_parameters(make_mocked_request("GET", f"/route?{query}"), PARSERS)


def test_given_parameters_are_parsed():
    assert read("since=0&limit=500&state=b&name=x%20y") == {"since": 0, "limit": 500, "state": "b", "name": "x y"}
    assert read("") == {}


@pytest.mark.parametrize(("query", "reason"), [
    ("since=-1", "`since` must be a whole number from 0, got '-1'"), ("since=1.5", "whole number"),
    ("since=", "whole number"), ("since=" + "9" * 16, "whole number"), ("since=%C2%B2", "whole number"),
    ("limit=0", "`limit` must be from 1 to 500, got 0"), ("limit=501", "got 501"),
    ("state=c", "`state` must be one of a, b, got 'c'"), ("since=1&since=2", "`since` is given twice"),
    ("sinc=1", "'sinc' is no parameter of /route; there are `since`, `limit`, `state`, `name`")])
def test_invalid_parameter_is_refused_with_its_name_and_value(query, reason):
    with pytest.raises(InvalidRequest) as refused:
        read(query)
    assert reason in str(refused.value)


def test_route_without_parameters_takes_none():
    with pytest.raises(InvalidRequest, match="it takes none"):
        parse_query_parameters(make_mocked_request("GET", "/route?a=1"), {})
