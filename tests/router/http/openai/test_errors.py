"""Errors in OpenAI's format: the routes that use it, and the JSON of each error."""

import json

import pytest
from aiohttp import web

from router import errors
from router.errors import (
    AdapterLoadFailed,
    AdapterNotFound,
    ChatTemplateFailed,
    EmbeddingFailed,
    InvalidRequest,
    Overloaded,
)
from router.http.openai.errors import OpenAIErrorReply, has_openai_error_format


@pytest.mark.parametrize(("path", "compat", "has"), [
    ("/v1/chat/completions", "none", True), ("/v1", "none", True), ("/v1/nowhere", "batching", True),
    ("/v1/chat/completions", "tgi", False), ("/v1/embeddings", "lorax", False), ("/generate", "none", False),
    ("/v10/x", "none", False), ("/invocations", "none", False)])
def test_v1_routes_use_openai_errors_unless_another_server_is_emulated(path, compat, has):
    assert has_openai_error_format(path, compat) is has


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), [
    (InvalidRequest("`stop` must not be"), 400, "invalid_request_error", "stop", ""),
    (InvalidRequest("too long", code="context_length_exceeded"), 400, "invalid_request_error", "",
     "context_length_exceeded"),
    (ChatTemplateFailed("`x` is not known"), 400, "invalid_request_error", "messages", ""),
    (AdapterNotFound("there is none", param="model"), 404, "invalid_request_error", "model", "model_not_found"),
    (AdapterLoadFailed("it has no end"), 424, "invalid_request_error", "", "adapter_failed"),
    (EmbeddingFailed("broken"), 500, "server_error", "", ""),
    (web.HTTPForbidden(text="no"), 403, "permission_error", "", ""),
    (web.HTTPConflict(text="no"), 409, "invalid_request_error", "", ""),
    (web.HTTPServiceUnavailable(text="no"), 503, "server_error", "", ""),
])
def test_error_has_status_type_param_and_code(error, status, kind, param, code):
    reply = OpenAIErrorReply.from_exception(error)
    assert (reply.status, reply.type, reply.param, reply.code) == (status, kind, param, code)


def test_every_error_class_has_an_entry_in_the_table():
    """An error class without an entry in the table becomes an internal error; `Cancelled` is never sent to a client."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    messages = {kind.__name__: OpenAIErrorReply.from_exception(kind("why")).message for kind in kinds}
    assert {name for name, message in messages.items() if "why" not in message} == {"RequestError", "Cancelled"}


def test_unknown_param_and_code_are_null():
    assert json.loads(OpenAIErrorReply.from_exception(InvalidRequest("bad")).to_json()) == {
        "error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}


def test_overload_error_has_a_retry_after_header():
    answer = OpenAIErrorReply.from_exception(Overloaded("full", retry_after=2.5)).to_response()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "3")


@pytest.mark.parametrize("error", [InvalidRequest("x" * 10**6), web.HTTPBadRequest(text="x" * 10**6)])
def test_long_client_input_is_shortened_in_errors(error):
    assert len(OpenAIErrorReply.from_exception(error).to_json()) < 700
