"""CORS headers for browsers that show a page of another origin."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import Keys
from router.config import RouterConfig
from router.http.app import create_door
from router.http.routes.probes import Probes
from router.http.transport.cors import allow_origins

PAGE = "https://chat.example.org"
ASKS = {"Origin": PAGE, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}


def asked(serve, *origins, method="POST", path="/generate", api_key="", headers=None, json=None):
    async def scenario(client, engine):
        answer = await client.request(method, path, json=json, headers={"Origin": PAGE} if headers is None else headers)
        await answer.read()
        return answer.status, answer.headers, engine.requests
    return serve(scenario, config=RouterConfig(cors_allow_origin=origins, api_key=api_key))


def allowed(headers):
    return headers.get("Access-Control-Allow-Origin")


@pytest.mark.parametrize(("origins", "told"), [
    (("*",), "*"), ((PAGE,), PAGE), (("https://other.org", PAGE), PAGE), (("*", PAGE), "*"),
    (("https://other.org",), None), ((PAGE + ":8443",), None), (("https://CHAT.example.org",), None), ((), None)])
def test_only_pages_of_the_given_origins_see_answers(serve, origins, told):
    status, headers, _ = asked(serve, *origins, json={"inputs": "x"})
    assert (status, allowed(headers)) == (200, told)


@pytest.mark.parametrize(("origins", "vary"), [(("*",), None), ((PAGE,), "Origin"), (("https://other.org",), "Origin")])
def test_caches_know_when_the_answer_differs_by_origin(serve, origins, vary):
    assert asked(serve, *origins, json={"inputs": "x"})[1].get("Vary") == vary


def test_without_origins_nothing_is_as_if_there_were_browsers(serve):
    status, headers, _ = asked(serve, method="OPTIONS", headers=ASKS)
    assert status == 405
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_a_browser_may_ask_beforehand_without_a_key_whether_it_may_send_one(serve):
    status, headers, requests = asked(serve, PAGE, method="OPTIONS", api_key="sk-one", headers=ASKS)
    assert (status, allowed(headers), requests) == (200, PAGE, [])
    assert headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert headers["Access-Control-Allow-Headers"] == ASKS["Access-Control-Request-Headers"]
    assert int(headers["Access-Control-Max-Age"]) > 0


def test_one_that_names_no_headers_may_send_a_key(serve):
    asks = {name: value for name, value in ASKS.items() if not name.endswith("Headers")}
    assert "authorization" in asked(serve, "*", method="OPTIONS", headers=asks)[1]["Access-Control-Allow-Headers"]


def test_a_page_of_another_origin_is_not_told_that_it_may(serve):
    assert allowed(asked(serve, "https://other.org", method="OPTIONS", headers=ASKS)[1]) is None


@pytest.mark.parametrize("left_out", ["Origin", "Access-Control-Request-Method"])
def test_what_is_no_question_of_a_browser_is_answered_as_ever(serve, left_out):
    headers = {name: value for name, value in ASKS.items() if name != left_out}
    assert asked(serve, "*", method="OPTIONS", headers=headers)[0] == 405


@pytest.mark.parametrize(("path", "json", "status"), [
    ("/generate_stream", {"inputs": "x"}, 200), ("/generate", {"inputs": ""}, 422), ("/nowhere", None, 404)])
def test_streams_and_errors_are_seen_too_with_their_headers(serve, path, json, status):
    found, headers, _ = asked(serve, PAGE, path=path, json=json)
    assert (found, allowed(headers), headers["Access-Control-Expose-Headers"]) == (status, PAGE, "*")


def test_a_page_can_read_that_its_key_is_refused(serve):
    status, headers, _ = asked(serve, PAGE, api_key="sk-one", json={"inputs": "x"})
    assert (status, allowed(headers)) == (401, PAGE)


def test_the_door_is_seen_by_the_same_pages():
    async def scenario():
        door = create_door(Probes(lambda: "it loads", lambda: None), Keys.of(RouterConfig()))
        allow_origins(door, (PAGE,))
        async with TestClient(TestServer(door)) as client:
            answer = await client.post("/generate", headers={"Origin": PAGE})
            assert (answer.status, allowed(answer.headers)) == (503, PAGE)
    asyncio.run(scenario())
