"""Authentication by API key, and admin routes."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from router.api_keys import Keys
from router.config import RouterConfig
from router.http.transport.auth import TOKEN, admins_only, check_keys
from router.request import ANYONE, Tenant

CONFIG = RouterConfig(api_key="sk-One")


def asked(serve, method="POST", path="/generate", config=CONFIG, **headers):
    async def scenario(client, engine):
        answer = await client.request(method, path, json={"inputs": "x"}, headers=headers)
        return answer.status, answer.headers, await answer.text(), engine.requests
    return serve(scenario, config=config)


@pytest.mark.parametrize("header", ["Bearer sk-One", "bearer sk-One", "Bearer  sk-One "])
def test_who_sends_the_key_is_served(serve, header):
    assert asked(serve, Authorization=header)[0] == 200


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", "sk-One", "Basic sk-One", "Bearer sk-one", "Bearer sk-One sk-One", "Bearer sk-Öne"])
def test_others_are_told_that_a_key_is_needed_and_nothing_is_done(serve, header):
    status, headers, text, requests = asked(serve, **({} if header is None else {"Authorization": header}))
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert json.loads(text) == {"error": "a key is needed, sent as `Authorization: Bearer KEY`",
                                "error_type": "unauthorized"}
    assert not requests


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/generate_stream"), ("POST", "/"), ("POST", "/info"), ("GET", "/v1/requests/x/explain"),
    ("GET", "/nowhere"), ("PUT", "/generate"), ("GET", "/health/")])
def test_every_path_needs_one(serve, method, path):
    assert asked(serve, method, path)[0] == 401


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_what_probes_and_monitors_ask_needs_none(serve, path):
    assert asked(serve, "GET", path)[0] == 200


def test_without_keys_nobody_needs_one(serve):
    for headers in ({}, {"Authorization": "Bearer whatever"}):
        status, _, _, [request] = asked(serve, config=RouterConfig(), **headers)
        assert (status, request.tenant) == (200, ANYONE)


@pytest.mark.parametrize(("header", "token"), [
    ("Bearer hf_theirs", "hf_theirs"), ("bearer  hf_theirs ", "hf_theirs"), ("Bearer sk-theirs", ""),
    ("Bearer none", ""), ("Basic hf_theirs", ""), ("hf_theirs", ""), (None, "")])
def test_without_keys_a_client_sends_its_own_token(header, token):
    assert token_of(Keys({}), header) == token


def test_a_key_is_no_token():
    assert token_of(Keys({"sk-one": ANYONE}), "Bearer sk-one") == ""


def test_only_admins_reach_what_is_theirs():
    keys = Keys({"sk-one": ANYONE, "sk-two": ANYONE}, ["sk-one"])

    async def handler(request):
        return "reached"

    def reach(key, keys=keys):
        request = make_mocked_request("POST", "/looms", {"Authorization": f"Bearer {key}"})
        return asyncio.run(check_keys(keys)(request, admins_only(handler)))
    assert reach("sk-one") == reach("", Keys({})) == "reached"
    with pytest.raises(web.HTTPForbidden) as refused:
        reach("sk-two")
    assert refused.value.text == (
        "POST /looms needs an admin key: one with the role admin in the file of --api-keys, or the one of --api-key")


def token_of(keys, header):
    """Return the token that a handler finds in the request."""
    async def handler(request):
        return request[TOKEN]
    request = make_mocked_request("POST", "/", {} if header is None else {"Authorization": header})
    return asyncio.run(check_keys(keys)(request, handler))


def test_the_request_belongs_to_the_tenant_of_the_key(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-two": {"tenant": "a", "weight": 3}}')
    config = RouterConfig(api_keys=str(tmp_path / "keys"))
    *_, [request] = asked(serve, config=config, Authorization="Bearer sk-two")
    assert request.tenant == Tenant("a", 3.0)
