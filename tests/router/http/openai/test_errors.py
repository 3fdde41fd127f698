"""Errors in OpenAI's format: the routes that use it, and the JSON of each error."""

import json

import pytest
from aiohttp import web

from router import errors
from router.errors import AdapterFailed, AdapterMissing, EmbeddingFailed, InvalidRequest, Overloaded, TemplateFailed
from router.http.openai.errors import ApiError, has_api_errors


@pytest.mark.parametrize(("path", "compat", "has"), [
    ("/v1/chat/completions", "none", True), ("/v1", "none", True), ("/v1/nowhere", "batching", True),
    ("/v1/chat/completions", "tgi", False), ("/v1/embeddings", "lorax", False), ("/generate", "none", False),
    ("/v10/x", "none", False), ("/invocations", "none", False)])
def test_all_routes_below_v1_have_them_unless_they_are_another_server_s(path, compat, has):
    assert has_api_errors(path, compat) is has


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), [
    (InvalidRequest("`stop` must not be"), 400, "invalid_request_error", "stop", ""),
    (InvalidRequest("too long", code="context_length_exceeded"), 400, "invalid_request_error", "",
     "context_length_exceeded"),
    (TemplateFailed("`x` is not known"), 400, "invalid_request_error", "messages", ""),
    (AdapterMissing("there is none", param="model"), 404, "invalid_request_error", "model", "model_not_found"),
    (AdapterFailed("it has no end"), 424, "invalid_request_error", "", "adapter_failed"),
    (EmbeddingFailed("broken"), 500, "server_error", "", ""),
    (web.HTTPForbidden(text="no"), 403, "permission_error", "", ""),
    (web.HTTPConflict(text="no"), 409, "invalid_request_error", "", ""),
    (web.HTTPServiceUnavailable(text="no"), 503, "server_error", "", ""),
])
def test_an_error_has_a_status_a_type_a_param_and_a_code(error, status, kind, param, code):
    found = ApiError.of(error)
    assert (found.status, found.type, found.param, found.code) == (status, kind, param, code)


def test_every_error_of_ours_has_a_type_of_its_own_choice():
    """An error class without an entry in the table becomes an internal error; `Cancelled` is never sent to a client."""
    ours = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    told = {kind.__name__: ApiError.of(kind("why")).message for kind in ours}
    assert {name for name, message in told.items() if "why" not in message} == {"RequestError", "Cancelled"}


def test_what_is_not_known_is_null():
    assert json.loads(ApiError.of(InvalidRequest("bad")).json()) == {
        "error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}


def test_a_refusal_says_when_to_come_back():
    answer = ApiError.of(Overloaded("full", retry_after=2.5)).response()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "3")


@pytest.mark.parametrize("error", [InvalidRequest("x" * 10**6), web.HTTPBadRequest(text="x" * 10**6)])
def test_an_error_repeats_no_more_than_some_of_what_the_client_sent(error):
    assert len(ApiError.of(error).json()) < 700
