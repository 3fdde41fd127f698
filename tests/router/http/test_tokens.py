"""Tokens and their places, without generating."""

import json

import pytest

from router.chat import ChatTemplate

HELLO = [{"role": "user", "content": "hi"}]


def tokens(post, text, **given):
    status, _, answer = post("/tokenize", inputs=text, **given)
    assert status == 200, answer
    return json.loads(answer)


def test_every_token_is_told_with_its_place(post):
    assert tokens(post, "weft") == [
        {"id": ord(letter), "text": letter, "start": place, "stop": place + 1} for place, letter in enumerate("weft")]


def test_places_count_bytes(post):
    told = tokens(post, "\u00e9\U0001f600x")
    assert [token["id"] for token in told] == list("\u00e9\U0001f600x".encode())
    assert (told[-1]["start"], told[-1]["stop"], told[-1]["text"]) == (6, 7, "x")
    assert {(token["start"], token["stop"]) for token in told[:2]} == {(0, 2)}


def test_a_prompt_of_any_length_is_told_and_nothing_is_cut(post):
    assert len(tokens(post, "x" * 5000, parameters={"truncate": 3})) == 5000


def test_nothing_is_generated(serve):
    async def scenario(client, engine):
        await client.post("/tokenize", json={"inputs": "x"})
        await client.post("/chat_tokenize", json={"messages": HELLO})
        assert not engine.requests
    serve(scenario)


def test_of_a_chat_the_prompt_is_told_as_well(post):
    status, _, text = post("/chat_tokenize", messages=HELLO)
    told = json.loads(text)
    assert (status, told["templated_text"]) == (200, "user: hi\nassistant: ")
    assert "".join(token["text"] for token in told["tokenize_response"]) == told["templated_text"]


@pytest.mark.parametrize(("path", "body", "status", "error_type"), [
    ("/tokenize", {"inputs": ""}, 422, "validation"), ("/tokenize", {"inputs": 5}, 422, "validation"),
    ("/chat_tokenize", {"messages": []}, 422, "validation"),
    ("/tokenize", {}, 422, "validation")])
def test_what_is_wrong_is_told(post, path, body, status, error_type):
    got, _, text = post(path, **body)
    assert (got, json.loads(text)["error_type"]) == (status, error_type)


def test_a_template_that_fails_is_told(post):
    status, _, text = post("/chat_tokenize", messages=HELLO, template=ChatTemplate("{{ raise_exception('no') }}", {}))
    assert (status, json.loads(text)["error_type"]) == (422, "template_error")
