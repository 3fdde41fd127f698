"""Tokenizing without generation: tokens and their offsets."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from router.config import RouterConfig
from router.http.routes.tokenize import TOKENS_PER_PIECE, json_list_pieces, make_tokenizer_info
from router.http.server import abort_connection
from router.http.transport.body import send_json
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, create_byte_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def tokenize(post, text, **post_options):
    status, _, answer = post("/tokenize", inputs=text, **post_options)
    assert status == 200, answer
    return json.loads(answer)


def test_every_token_has_its_offsets(post):
    assert tokenize(post, "weft") == [
        {"id": ord(letter), "text": letter, "start": place, "stop": place + 1} for place, letter in enumerate("weft")]


def test_offsets_count_bytes(post):
    tokens = tokenize(post, "\u00e9\U0001f600x")
    assert [token["id"] for token in tokens] == list("\u00e9\U0001f600x".encode())
    assert (tokens[-1]["start"], tokens[-1]["stop"], tokens[-1]["text"]) == (6, 7, "x")
    assert {(token["start"], token["stop"]) for token in tokens[:2]} == {(0, 2)}


def test_truncate_does_not_apply_to_tokenize(post):
    assert len(tokenize(post, "x" * 1500, parameters={"truncate": 3})) == 1500


@pytest.mark.parametrize(("path", "field", "body"), [
    ("/tokenize", "inputs", lambda text: {"inputs": text, "parameters": {"truncate": 3}}),
    ("/chat_tokenize", "messages", lambda text: {"messages": [{"role": "user", "content": text}]})])
@pytest.mark.parametrize("compat", ["none", "tgi", "lorax"])
def test_tokenize_accepts_prompts_up_to_the_input_limit(post, path, field, body, compat):
    config = RouterConfig(max_input_tokens=1000, compat=compat)
    frame = len("user: \nassistant: ") if field == "messages" else 0
    assert post(path, config=config, **body("x" * (1000 - frame)))[0] == 200
    status, _, text = post(path, config=config, **body("x" * (1001 - frame)))
    assert status == 422
    assert json.loads(text) == {
        "error": f"Input validation error: `{field}` must have at most 1000 tokens (--max-input-tokens), got 1001; "
                 "shorten it", "error_type": "validation"}


def test_encoder_tokenizes_up_to_its_model_length(serve):
    async def scenario(client, engine):
        for length, status in ((2048, 200), (2049, 422)):
            answer = await client.post("/tokenize", json={"inputs": "x" * length})
            assert answer.status == status
        assert "at most 2048 tokens (what the model holds), got 2049" in (await answer.json())["error"]
    serve(scenario, generation=False)


def test_long_response_is_sent_in_pieces_of_valid_json():
    for length in (0, 1, TOKENS_PER_PIECE - 1, TOKENS_PER_PIECE, TOKENS_PER_PIECE + 1, 3 * TOKENS_PER_PIECE):
        tokens = [{"id": number} for number in range(length)]
        pieces = [*json_list_pieces(tokens)]
        assert b"".join(pieces).decode() == json.dumps(tokens)
        assert len(pieces) == 1 + -(-length // TOKENS_PER_PIECE)


def test_client_that_does_not_read_is_disconnected(serve):
    async def scenario(client, engine):
        given_up = asyncio.Event()

        async def send(request):
            with pytest.raises(ConnectionResetError, match="the client did not read for"):
                await send_json(request, [bytes(100_000)] * 1000, 100_000_000, 0.01, headers={})
            given_up.set()
            return abort_connection(request)
        app = web.Application()
        app.add_routes([web.get("/", send)])
        async with TestServer(app) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await given_up.wait()
            writer.close()
            await writer.wait_closed()
    serve(scenario)


def test_tokenize_routes_generate_nothing(serve):
    async def scenario(client, engine):
        await client.post("/tokenize", json={"inputs": "x"})
        await client.post("/chat_tokenize", json={"messages": MESSAGES})
        assert not engine.requests
    serve(scenario)


@pytest.mark.parametrize("path", ["/chat_tokenize", "/tokenize"])
def test_field_that_would_change_the_prompt_is_refused_as_in_a_chat(post, path):
    status, _, text = post(path, messages=MESSAGES, documents=[{"text": "x"}])
    assert (status, "`documents` is given, but this server does not support it" in text) == (422, True)


def test_chat_tokenize_also_returns_the_rendered_prompt(post):
    status, _, text = post("/chat_tokenize", messages=MESSAGES)
    response = json.loads(text)
    assert (status, response["templated_text"]) == (200, "user: hi\nassistant: ")
    assert "".join(token["text"] for token in response["tokenize_response"]) == response["templated_text"]


@pytest.mark.parametrize(("path", "body", "status", "error_type"), [
    ("/tokenize", {"inputs": ""}, 422, "validation"), ("/tokenize", {"inputs": 5}, 422, "validation"),
    ("/chat_tokenize", {"messages": []}, 422, "validation"),
    ("/tokenize", {}, 422, "validation")])
def test_invalid_tokenize_request_is_rejected(post, path, body, status, error_type):
    response_status, _, text = post(path, **body)
    assert (response_status, json.loads(text)["error_type"]) == (status, error_type)


def test_template_failure_is_reported(post):
    status, _, text = post("/chat_tokenize", messages=MESSAGES,
                           template=ChatTemplate("{{ raise_exception('no') }}", {}))
    assert (status, json.loads(text)["error_type"]) == (422, "template_error")


# -- as vLLM does


def test_prompt_is_answered_with_token_ids(post):
    status, _, text = post("/tokenize", prompt="weft", model="x", config=RouterConfig(max_total_tokens=1500))
    assert status == 200
    assert json.loads(text) == {"count": 4, "max_model_len": 1500, "tokens": list(b"weft"), "token_strs": None}


def test_messages_are_answered_with_the_tokens_of_their_prompt(post):
    rendered = json.loads(post("/chat_tokenize", messages=MESSAGES)[2])["tokenize_response"]
    answer = json.loads(post("/tokenize", messages=MESSAGES)[2])
    assert answer["tokens"] == [token["id"] for token in rendered]


def test_tokens_are_turned_back_into_text(post):
    for tokens, expected in (([*b"weft"], "weft"), ([*"\u00e9".encode(), 256], "\u00e9<|end|>"), ([], "")):
        status, _, text = post("/detokenize", tokens=tokens)
        assert (status, json.loads(text)) == (200, {"prompt": expected})


@pytest.mark.parametrize(("tokens", "words"), [
    ([512], "`tokens` holds token 512; this model knows those below 512"), ([-1], "`tokens.0`"), ("x", "`tokens`"),
    ([1] * 1601, "`tokens` must hold at most 1600 tokens (--max-total-tokens), got 1601")])
def test_invalid_tokens_are_rejected(post, tokens, words):
    status, _, text = post("/detokenize", tokens=tokens)
    assert status == 422
    assert words in json.loads(text)["error"]


def test_tokenizer_info_has_end_token_and_template(serve):
    async def scenario(client, engine):
        async with client.get("/tokenizer_info") as answer:
            assert answer.status == 200
            assert await answer.json() == {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>",
                                           "chat_template": "{{ messages }}"}
    serve(scenario, template=ChatTemplate("{{ messages }}", {}))


def test_tokenizer_info_has_the_configuration_without_paths():
    known = {"tokenizer_class": "LlamaTokenizerFast", "eos_token": "</s>", "model_max_length": 512}
    paths = {"name_or_path": "/home/me", "_name_or_path": "/home/me", "vocab_file": "/home/me/vocab.txt"}
    tokenizer = Tokenizer(create_byte_tokenizer()._tokenizer, [256], config={**known, **paths, "chat_template": "old"})
    assert make_tokenizer_info(tokenizer, None) == {**known, "chat_template": None}
