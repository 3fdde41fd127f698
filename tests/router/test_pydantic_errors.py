"""Words for what pydantic finds wrong, compared with the errors that pydantic itself makes."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from router.pydantic_errors import MAX_SHOWN_CHARACTERS, describe_first_error


class Inner(BaseModel):
    model_config = ConfigDict(strict=True)

    kind: Literal["inner"] = "inner"
    number: int


class Other(BaseModel):
    kind: Literal["other"]


class Model(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    count: Annotated[int, Field(ge=1, le=9)] = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    is_on: bool = True
    text: Annotated[str, Field(min_length=1, max_length=100)] = "x"
    texts: Annotated[list[str], Field(min_length=1, max_length=3)] = ["x"]
    texts_or_numbers: str | list[str] | list[int] = ""
    numbers: dict[str, int] = {}
    inner: Inner | None = None
    choice: Literal["a", "b"] = "a"
    either: Annotated[Inner | Other, Field(discriminator="kind")] | None = None


def describe(body: str, **options: bool) -> str:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate_json(body)
    location, fault = describe_first_error(caught.value.errors(include_url=False), **options)
    return f"{'.'.join(map(str, location))} {fault}"


@pytest.mark.parametrize(("body", "description"), [
    ('{"count": "many"}', "count must be an integer, got 'many'"),
    ('{"count": 1.5}', "count must be an integer, got 1.5"),
    ('{"count": 0}', "count must be at least 1, got 0"),
    ('{"count": 10}', "count must be at most 9, got 10"),
    ('{"share": "half"}', "share must be a number, got 'half'"),
    ('{"share": 0}', "share must be above 0.0, got 0"),
    ('{"share": 1}', "share must be below 1.0, got 1"),
    ('{"share": NaN}', "share must be a finite number, got NaN"),
    ('{"is_on": "yes"}', "is_on must be true or false, got 'yes'"),
    ('{"text": 5}', "text must be a string, got 5"),
    ('{"text": null}', "text must be a string, got null"),
    ('{"text": ""}', "text must have at least 1 character, got 0"),
    (f'{{"text": "{"x" * 101}"}}', "text must have at most 100 characters, got 101"),
    ('{"texts": 5}', "texts must be an array, got 5"),
    ('{"texts": []}', "texts must have at least 1 item, got 0"),
    ('{"texts": ["a", "b", "c", "d"]}', "texts must have at most 3 items, got 4"),
    ('{"texts": ["a", {}]}', "texts.1 must be a string, got an object"),
    ('{"texts_or_numbers": 5}', "texts_or_numbers must be a string or an array, got 5"),
    ('{"numbers": []}', "numbers must be an object, got an array"),
    ('{"numbers": {"a": "b"}}', "numbers.a must be an integer, got 'b'"),
    ('{"inner": {}}', "inner.number is missing"),
    ('{"inner": 5}', "inner must be an object, got 5"),
    ('{"choice": "c"}', "choice must be 'a' or 'b', got 'c'"),
    ('{"either": {"kind": "third"}}', "either must have one of 'inner', 'other' as 'kind', got 'third'"),
    ('{"either": {}}', "either must have 'kind', got an object"),
    ("[]", " must be an object, got an array"),
])
def test_rule_and_value_are_described(body: str, description: str) -> None:
    assert describe(body) == description


def test_long_strings_are_cut_and_secret_ones_not_shown() -> None:
    body = f'{{"count": "{"x" * 1000}"}}'
    assert describe(body) == f"count must be an integer, got '{'x' * MAX_SHOWN_CHARACTERS}'..."
    assert describe(body, shows_strings=False) == "count must be an integer, got a string"


def test_text_of_other_errors_is_that_of_pydantic() -> None:
    error = {"type": "custom", "loc": ("a",), "msg": "must rhyme", "input": "x"}
    assert describe_first_error([error]) == (("a",), "must rhyme")
