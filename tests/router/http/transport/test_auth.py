"""Authentication by API key, and admin routes."""

import asyncio
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from router.api_keys import ApiKeys
from router.config import RouterConfig
from router.http.transport.auth import CLIENT, authenticate, require_admin
from router.request import DEFAULT_TENANT, Tenant

API_KEY_CONFIG = RouterConfig(api_key="sk-One")


def send_request(serve, method="POST", path="/generate", config=API_KEY_CONFIG, **headers):
    async def scenario(client, engine):
        answer = await client.request(method, path, json={"inputs": "x"}, headers=headers)
        return answer.status, answer.headers, await answer.text(), engine.requests
    return serve(scenario, config=config)


@pytest.mark.parametrize("header", ["Bearer sk-One", "bearer sk-One", "Bearer  sk-One "])
def test_request_with_the_api_key_is_served(serve, header):
    assert send_request(serve, Authorization=header)[0] == 200


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", "sk-One", "Basic sk-One", "Bearer sk-one", "Bearer sk-One sk-One", "Bearer sk-Öne"])
def test_request_without_a_valid_api_key_is_rejected(serve, header):
    status, headers, text, requests = send_request(serve, **({} if header is None else {"Authorization": header}))
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    has_key = (header or "").lower().startswith("bearer ") and header != "Bearer "
    need = "the key is not one of this server's; one is" if has_key else "a key is"
    assert json.loads(text) == {"error": f"{need} needed, sent as `Authorization: Bearer KEY`",
                                "error_type": "unauthorized"}
    assert not requests


@pytest.mark.parametrize(("method", "path"), [
    ("POST", "/generate_stream"), ("POST", "/"), ("POST", "/info"), ("GET", "/v1/requests/x/explain"),
    ("GET", "/nowhere"), ("PUT", "/generate"), ("GET", "/health/")])
def test_all_other_paths_require_an_api_key(serve, method, path):
    assert send_request(serve, method, path)[0] == 401


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_probe_and_metrics_paths_need_no_api_key(serve, path):
    assert send_request(serve, "GET", path)[0] == 200


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/weft/demo"])
def test_wrong_key_is_rejected_where_clients_try_theirs(path):
    keys = ApiKeys({"sk-one": DEFAULT_TENANT})
    for headers in ({}, {"Authorization": "Bearer sk-one"}):
        authenticate(make_mocked_request("GET", path, headers), keys)
    with pytest.raises(web.HTTPUnauthorized):
        authenticate(make_mocked_request("GET", path, {"Authorization": "Bearer sk-two"}), keys)
    authenticate(make_mocked_request("GET", "/metrics", {"Authorization": "Bearer sk-two"}), keys)


def test_server_without_keys_needs_no_api_key(serve):
    for headers in ({}, {"Authorization": "Bearer whatever"}):
        status, _, _, [request] = send_request(serve, config=RouterConfig(), **headers)
        assert (status, request.tenant) == (200, DEFAULT_TENANT)


@pytest.mark.parametrize(("header", "token"), [
    ("Bearer hf_theirs", "hf_theirs"), ("bearer  hf_theirs ", "hf_theirs"), ("Bearer sk-theirs", ""),
    ("Bearer none", ""), ("Basic hf_theirs", ""), ("hf_theirs", ""), (None, "")])
def test_client_token_is_forwarded_if_no_keys_are_configured(header, token):
    assert read_source_token(ApiKeys({}), header) == token


def test_api_key_is_never_used_as_a_source_token():
    assert read_source_token(ApiKeys({"sk-one": DEFAULT_TENANT}), "Bearer sk-one") == ""


def test_admin_routes_are_only_for_admin_keys():
    keys = ApiKeys({"sk-one": DEFAULT_TENANT, "sk-two": DEFAULT_TENANT}, ["sk-one"])

    async def handler(request):
        return "reached"

    def request_with_key(key, keys=keys):
        request = make_mocked_request("POST", "/looms", {"Authorization": f"Bearer {key}"})
        authenticate(request, keys)
        return asyncio.run(require_admin(handler)(request))
    assert request_with_key("sk-one") == request_with_key("", ApiKeys({})) == "reached"
    with pytest.raises(web.HTTPForbidden) as refused:
        request_with_key("sk-two")
    assert refused.value.text == (
        "POST /looms needs an admin key: one with the role admin in the file of --api-keys, or the one of --api-key")


def read_source_token(keys, header):
    """Return the token that a handler finds in the request."""
    request = make_mocked_request("POST", "/", {} if header is None else {"Authorization": header})
    authenticate(request, keys)
    return request[CLIENT].source_token


def test_request_belongs_to_the_tenant_of_its_key(serve, tmp_path):
    (tmp_path / "keys").write_text('{"sk-two": {"tenant": "a", "weight": 3}}')
    config = RouterConfig(api_keys=str(tmp_path / "keys"))
    *_, [request] = send_request(serve, config=config, Authorization="Bearer sk-two")
    assert request.tenant == Tenant("a", 3.0)


@pytest.mark.parametrize(("host", "status"), [
    ("localhost", 200), ("127.0.0.1:3000", 200), ("[::1]:3000", 200), ("LOCALHOST:1", 200), ("chat.localhost", 200),
    ("10.0.0.7", 200), ("weft:3000", 200), ("", 200),
    ("evil.example", 403), ("evil.example:3000", 403), ("localhost.evil.example", 403),
    ("127.0.0.1.evil.example", 403)])
def test_keyless_server_on_loopback_answers_for_no_domain_name(serve, host, status):
    answer = send_request(serve, config=RouterConfig(), Host=host)
    assert answer[0] == status
    assert (f"got `Host` {host!r}" in answer[2]) == (status == 403)


@pytest.mark.parametrize(("config", "host", "status"), [
    (RouterConfig(hostname="0.0.0.0"), "evil.example", 200),
    (RouterConfig(allowed_hosts=("chat.example.org",)), "chat.example.org:443", 200),
    (RouterConfig(allowed_hosts=("chat.example.org",)), "localhost", 200),
    (RouterConfig(hostname="0.0.0.0", allowed_hosts=("chat.example.org",)), "evil.example", 403),
    (RouterConfig(allowed_hosts=("*",)), "evil.example", 200)])
def test_allowed_hosts_are_a_setting(serve, config, host, status):
    assert send_request(serve, config=config, Host=host)[0] == status


def test_server_with_keys_answers_for_any_name(serve):
    assert send_request(serve, Host="chat.example.org", Authorization="Bearer sk-One")[0] == 200
