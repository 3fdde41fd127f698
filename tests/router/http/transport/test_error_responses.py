"""Error responses in the formats of text-generation-inference and of OpenAI: their routes and their JSON."""

import asyncio
import json
import logging

import pytest
from aiohttp import web

from router import errors
from router.errors import (
    SHUTDOWN_REASON,
    AdapterLoadFailed,
    AdapterNotFound,
    ChatTemplateFailed,
    ClassificationFailed,
    EmbeddingFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    NotReady,
    Overloaded,
    TimedOut,
    make_not_ready_error,
)
from router.http.transport.error_responses import (
    AnthropicErrorReply,
    OllamaErrorReply,
    OpenAIErrorReply,
    TgiErrorReply,
    error_label,
    has_openai_error_format,
)


@pytest.mark.parametrize(("error", "status", "error_type", "text"), [
    (InvalidRequest("bad"), 422, "validation", "Input validation error: bad"),
    (ChatTemplateFailed("no roles"), 422, "template_error", "Template error: no roles"),
    (InvalidTools("not both"), 422, "tool_error", "Tool error: not both"),
    (Overloaded("full"), 429, "overloaded", "Model is overloaded: full"),
    (NotReady("starting"), 503, "overloaded", "Model is not ready: starting"),
    (GenerationFailed("broken"), 424, "generation", "Request failed during generation: broken"),
    (TimedOut("too late"), 408, "timeout", "Request timed out: too late"),
    (web.HTTPUnauthorized(text="a key is needed"), 401, "unauthorized", "a key is needed"),
    (web.HTTPNotFound(), 404, "not_found", "404: Not Found"),
])
def test_error_has_a_status_a_type_and_a_message(error, status, error_type, text):
    reply = TgiErrorReply.from_exception(error)
    assert reply.status == status
    assert json.loads(reply.to_json()) == {"error": text, "error_type": error_type}


@pytest.mark.parametrize(("reply_type", "error"), [
    (TgiErrorReply, {"error": "Model is not ready: the server is shutting down", "error_type": "shutting_down"}),
    (OpenAIErrorReply, {"error": {"message": "Model is not ready: the server is shutting down", "type": "server_error",
                                  "param": None, "code": "shutting_down"}}),
    (AnthropicErrorReply, {"type": "error", "error": {"type": "api_error", "message":
                                                      "Model is not ready: the server is shutting down"}}),
    (OllamaErrorReply, {"error": "Model is not ready: the server is shutting down"})])
def test_server_that_shuts_down_says_so_in_every_dialect(reply_type, error):
    """Its error was that of an overloaded server."""
    reply = reply_type.from_exception(make_not_ready_error(SHUTDOWN_REASON))
    assert (reply.status, json.loads(reply.to_json())) == (503, error)
    assert reply.to_response().headers["Retry-After"] == "1"


def test_internal_error_is_logged_and_hidden_from_the_client(caplog):
    with caplog.at_level(logging.ERROR):
        reply = TgiErrorReply.from_exception(KeyError("/a/secret/path"))
    assert (reply.status, reply.message) == (500, "Internal server error")
    assert "/a/secret/path" in caplog.text


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.2, "2"), (30.0, "30")])
def test_overload_error_has_a_retry_after_header(seconds, header):
    assert (TgiErrorReply.from_exception(Overloaded("full", retry_after=seconds)).to_response().headers["Retry-After"]
            == header)


def test_other_errors_have_no_retry_after_header():
    assert "Retry-After" not in TgiErrorReply.from_exception(InvalidRequest("bad")).to_response().headers


@pytest.mark.parametrize("error", [
    InvalidRequest("x" * 10**6), ChatTemplateFailed("x" * 10**6), web.HTTPBadRequest(text="x" * 10**6)])
def test_long_client_input_is_shortened_in_errors(error):
    """Regression: a tool choice of a megabyte was answered with an error of a megabyte."""
    assert len(TgiErrorReply.from_exception(error).to_json()) < 600


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


def test_error_of_a_long_prompt_has_the_words_that_clients_look_for():
    """LiteLLM and agents read the message, and then shorten the prompt. TGI's clients know TGI's own words."""
    error = InvalidRequest("`messages` must have at most 9 tokens, got 10", code="context_length_exceeded")
    message = "the prompt is too long: `messages` must have at most 9 tokens, got 10"
    reply = OpenAIErrorReply.from_exception(error)
    assert (reply.message, reply.param) == (message, "messages")
    assert {kind.from_exception(error).message for kind in (AnthropicErrorReply, OllamaErrorReply)} == {message}
    assert "too long" not in TgiErrorReply.from_exception(error).message


def test_every_error_class_has_an_entry_in_the_table():
    """An error class without an entry in the table becomes an internal error; `Cancelled` is never sent to a client."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RequestError)]
    messages = {kind.__name__: OpenAIErrorReply.from_exception(kind("why")).message for kind in kinds}
    assert {name for name, message in messages.items() if "why" not in message} == {"RequestError", "Cancelled"}


def test_unknown_param_and_code_are_null():
    assert json.loads(OpenAIErrorReply.from_exception(InvalidRequest("bad")).to_json()) == {
        "error": {"message": "bad", "type": "invalid_request_error", "param": None, "code": None}}


def test_openai_overload_error_has_a_retry_after_header():
    answer = OpenAIErrorReply.from_exception(Overloaded("full", retry_after=2.5)).to_response()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "3")


@pytest.mark.parametrize("error", [InvalidRequest("x" * 10**6), web.HTTPBadRequest(text="x" * 10**6)])
def test_long_client_input_is_shortened_in_openai_errors(error):
    assert len(OpenAIErrorReply.from_exception(error).to_json()) < 700


@pytest.mark.parametrize(("error", "err"), [
    (ChatTemplateFailed("no"), "template"), (InvalidTools("no"), "validation"),
    (AdapterNotFound("no"), "download_adapter"), (AdapterLoadFailed("no"), "download_adapter"),
    (EmbeddingFailed("no"), "embedding_failure"), (ClassificationFailed("no"), "classification_failure"),
    (GenerationFailed("no"), "generation"),
    (asyncio.CancelledError(), "dropped"), (web.HTTPBadRequest(), "validation"),
    (web.HTTPRequestEntityTooLarge(1, 2), "validation"), (web.HTTPInternalServerError(), "incomplete"),
    (KeyError("a mistake"), "incomplete")])
def test_error_labels_are_those_of_tgi_or_lorax(error, err):
    assert error_label(type(error)) == err
