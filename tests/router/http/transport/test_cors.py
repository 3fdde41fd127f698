"""CORS headers for browsers that show a page of another origin."""

import asyncio

import pytest
from aiohttp.test_utils import TestClient, TestServer

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.app import create_stand_in_app
from router.http.routes.probes import ProbeRoutes
from router.http.transport.cors import allow_cors_origins

PAGE_ORIGIN = "https://chat.example.org"
PREFLIGHT_HEADERS = {"Origin": PAGE_ORIGIN, "Access-Control-Request-Method": "POST",
                     "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}


def send_request(serve, *origins, method="POST", path="/generate", api_key="", headers=None, json=None):
    async def scenario(client, engine):
        answer = await client.request(method, path, json=json,
                                      headers={"Origin": PAGE_ORIGIN} if headers is None else headers)
        await answer.read()
        return answer.status, answer.headers, engine.requests
    return serve(scenario, config=RouterConfig(cors_allow_origin=origins, api_key=api_key))


def get_allowed_origin(headers):
    return headers.get("Access-Control-Allow-Origin")


@pytest.mark.parametrize(("origins", "expected"),
                         [(("*",), "*"), ((PAGE_ORIGIN,), PAGE_ORIGIN),
                          (("https://other.org", PAGE_ORIGIN), PAGE_ORIGIN), (("*", PAGE_ORIGIN), "*"),
                          (("https://other.org",), None), ((PAGE_ORIGIN + ":8443",), None),
                          (("https://CHAT.example.org",), None), ((), None)])
def test_only_allowed_origins_get_cors_headers(serve, origins, expected):
    status, headers, _ = send_request(serve, *origins, json={"inputs": "x"})
    assert (status, get_allowed_origin(headers)) == (200, expected)


@pytest.mark.parametrize(("origins", "vary"),
                         [(("*",), None), ((PAGE_ORIGIN,), "Origin"), (("https://other.org",), "Origin")])
def test_vary_header_is_set_if_the_answer_differs_by_origin(serve, origins, vary):
    assert send_request(serve, *origins, json={"inputs": "x"})[1].get("Vary") == vary


def test_no_cors_headers_are_sent_without_configured_origins(serve):
    status, headers, _ = send_request(serve, method="OPTIONS", headers=PREFLIGHT_HEADERS)
    assert status == 405
    assert not [name for name in headers if name.startswith("Access-Control")]


def test_preflight_request_needs_no_api_key(serve):
    status, headers, requests = send_request(serve, PAGE_ORIGIN, method="OPTIONS", api_key="sk-one",
                                             headers=PREFLIGHT_HEADERS)
    assert (status, get_allowed_origin(headers), requests) == (200, PAGE_ORIGIN, [])
    assert headers["Access-Control-Allow-Methods"] == "GET, POST"
    assert headers["Access-Control-Allow-Headers"] == PREFLIGHT_HEADERS["Access-Control-Request-Headers"]
    assert int(headers["Access-Control-Max-Age"]) > 0


def test_preflight_without_a_header_list_allows_authorization(serve):
    headers = {name: value for name, value in PREFLIGHT_HEADERS.items() if not name.endswith("Headers")}
    assert "authorization" in send_request(serve, "*", method="OPTIONS",
                                           headers=headers)[1]["Access-Control-Allow-Headers"]


def test_preflight_from_another_origin_is_not_allowed(serve):
    assert get_allowed_origin(send_request(serve, "https://other.org", method="OPTIONS",
                                           headers=PREFLIGHT_HEADERS)[1]) is None


@pytest.mark.parametrize("left_out", ["Origin", "Access-Control-Request-Method"])
def test_incomplete_preflight_is_an_ordinary_request(serve, left_out):
    headers = {name: value for name, value in PREFLIGHT_HEADERS.items() if name != left_out}
    assert send_request(serve, "*", method="OPTIONS", headers=headers)[0] == 405


@pytest.mark.parametrize(("path", "json", "status"), [
    ("/generate_stream", {"inputs": "x"}, 200), ("/generate", {"inputs": ""}, 422), ("/nowhere", None, 404)])
def test_streams_and_errors_have_cors_headers(serve, path, json, status):
    response_status, headers, _ = send_request(serve, PAGE_ORIGIN, path=path, json=json)
    assert (response_status, get_allowed_origin(headers)) == (status, PAGE_ORIGIN)
    assert headers["Access-Control-Expose-Headers"] == "*"


def test_rejected_api_key_error_is_readable_by_the_page(serve):
    status, headers, _ = send_request(serve, PAGE_ORIGIN, api_key="sk-one", json={"inputs": "x"})
    assert (status, get_allowed_origin(headers)) == (401, PAGE_ORIGIN)


def test_stand_in_server_sends_cors_headers():
    async def scenario():
        door = create_stand_in_app(ProbeRoutes(lambda: "it loads", lambda: None), ApiKeys.from_config(RouterConfig()))
        allow_cors_origins(door, (PAGE_ORIGIN,))
        async with TestClient(TestServer(door)) as client:
            answer = await client.post("/generate", headers={"Origin": PAGE_ORIGIN})
            assert (answer.status, get_allowed_origin(answer.headers)) == (503, PAGE_ORIGIN)
    asyncio.run(scenario())
