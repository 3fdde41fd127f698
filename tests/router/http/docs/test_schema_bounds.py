"""Value ranges of fields in the OpenAPI document; test_values.py tests that routes enforce them."""

import pytest

from router.http.docs.openapi import build_openapi_document
from router.http.docs.schema_bounds import BOUNDS_BY_BODY_MODEL, OPENAI_BOUNDS

SCHEMAS = build_openapi_document("lorax")["components"]["schemas"] | build_openapi_document()["components"]["schemas"]


@pytest.mark.parametrize("name", BOUNDS_BY_BODY_MODEL)
def test_bounds_appear_in_the_schemas_of_existing_fields(name):
    fields = SCHEMAS[name]["properties"]
    assert BOUNDS_BY_BODY_MODEL[name].keys() - OPENAI_BOUNDS.keys() <= fields.keys()
    for field in BOUNDS_BY_BODY_MODEL[name].keys() & fields.keys():
        assert BOUNDS_BY_BODY_MODEL[name][field].items() <= fields[field].items()


def test_same_field_name_has_dialect_specific_bounds():
    assert SCHEMAS["GenerateParameters"]["properties"]["temperature"]["exclusiveMinimum"] == 0
    assert SCHEMAS["ChatRequest"]["properties"]["temperature"]["minimum"] == 0
