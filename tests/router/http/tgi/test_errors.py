"""Error answers in the format of text-generation-inference."""

import json
import logging

import pytest
from aiohttp import web

from router.errors import (
    ChatTemplateFailed,
    GenerationFailed,
    InvalidRequest,
    InvalidTools,
    NotReady,
    Overloaded,
    TimedOut,
)
from router.http.tgi.errors import TgiErrorReply


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
