"""Meanings of the fields of request bodies."""

import pytest

from router.http.docs import build_openapi_document, iter_subclasses
from router.http.field_descriptions import FIELD_DESCRIPTIONS, describe_field
from router.http.ollama.requests import OllamaChatRequest
from router.http.openai.requests import ChatRequest
from router.http.transport.body import BodyModel

MODEL_NAMES = {model.__name__ for model in iter_subclasses(BodyModel)}
BODY_SCHEMAS = {name: schema for compat, dialect in (("none", "none"), ("lorax", "batching"))
                for name, schema in build_openapi_document(compat, dialect)["components"]["schemas"].items()
                if name in MODEL_NAMES}


def test_every_field_has_a_description_in_the_document():
    """A new field needs a description, unless FIELD_DESCRIPTIONS has an entry for its name."""
    assert [f"{model}.{name}" for model, schema in BODY_SCHEMAS.items()
            for name, field in schema.get("properties", {}).items() if not field["description"]] == []


def test_every_description_is_that_of_a_field():
    models = {model.__name__: model for model in iter_subclasses(BodyModel)}
    used = {key for schema_name, schema in BODY_SCHEMAS.items() for name in schema.get("properties", {})
            for key in (name, *(f"{base.__name__}.{name}" for base in models[schema_name].__mro__))}
    assert FIELD_DESCRIPTIONS.keys() - used == set()


@pytest.mark.parametrize(("model", "name", "beginning"), [
    (ChatRequest, "model", "an adapter; any other name"), (OllamaChatRequest, "model", "the served model"),
    (ChatRequest, "no_such_field", "")])
def test_description_is_that_of_the_nearest_class(model, name, beginning):
    description = describe_field(model, name)
    assert description.startswith(beginning)
    assert bool(description) == bool(beginning)
