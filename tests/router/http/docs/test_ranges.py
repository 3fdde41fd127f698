"""Value ranges of fields in the OpenAPI document; test_values.py tests that routes enforce them."""

import pytest

from router.http.docs.openapi import document
from router.http.docs.ranges import OPENAI, RANGES

SCHEMAS = document("lorax")["components"]["schemas"] | document()["components"]["schemas"]


@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_told_of_fields_that_there_are(name):
    fields = SCHEMAS[name]["properties"]
    assert RANGES[name].keys() - OPENAI.keys() <= fields.keys()
    for field in RANGES[name].keys() & fields.keys():
        assert RANGES[name][field].items() <= fields[field].items()


def test_the_same_name_may_mean_something_else_in_another_dialect():
    assert SCHEMAS["Parameters"]["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert SCHEMAS["ChatRequest"]["properties"]["temperature"]["minimum"] == 0
