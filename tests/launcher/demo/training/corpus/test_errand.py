"""Tests of a tool and of the ways to request it."""

from random import Random

from launcher.demo.training.corpus.errand import OK, Errand, parameters

LIGHT = Errand("set_light", "Turn a light on or off", "room:room on:yes size:size?", (
    "Light on in the {room} #on=true", "{size} light on in the {room}! #on=true"),
    ("The {room} is bright. #on=true", "The {room} is dark. #on=false"))
PRICE = Errand("get_price", "Get a price", "item:thing", ("Price of a {item}?",), ("It costs {price}.",), "price:price")
ADD = Errand("add", "Add", "a:number b:number", ("{a} and {b}?",), ("{result}",),
             works=lambda values: {"result": values["a"] + values["b"]})


def test_parameters_are_read_from_one_line() -> None:
    assert parameters("city:city unit:unit?") == [("city", "city", True), ("unit", "unit", False)]


def test_a_tool_is_what_chat_routes_take() -> None:
    assert LIGHT.tool() == {"type": "function", "function": {
        "name": "set_light", "description": "Turn a light on or off", "parameters": {
            "type": "object", "required": ["room", "on"], "properties": {
                "room": {"type": "string"}, "on": {"type": "boolean"},
                "size": {"type": "string", "enum": ["small", "medium", "large"]}}}}}


def test_a_wordy_tool_describes_its_parameters() -> None:
    properties = LIGHT.tool(wordy=True)["function"]["parameters"]["properties"]
    assert [rules["description"] for rules in properties.values()] == ["The room", "Yes or no", "The size"]


def test_arguments_are_what_was_said_and_what_it_means() -> None:
    rng = Random(1)
    for _ in range(50):
        question, values = LIGHT.ask(rng)
        assert values["room"] in question
        assert values["on"] is True
        assert list(values) in (["room", "on"], ["room", "on", "size"])


def test_what_is_said_afterwards_fits_the_arguments() -> None:
    assert LIGHT.say(Random(1), {"room": "attic", "on": False}, OK) == "The attic is dark."


def test_a_tool_answers_with_its_fields_or_its_work_or_yes() -> None:
    rng = Random(1)
    assert list(PRICE.answer(rng, {"item": "lamp"})) == ["price"]
    assert ADD.answer(rng, {"a": 2, "b": 3}) == {"result": 5}
    assert LIGHT.answer(rng, {}) == OK


def test_values_of_one_request_differ() -> None:
    rng = Random(1)
    assert all(values["a"] != values["b"] for values in (ADD.ask(rng)[1] for _ in range(200)))
