"""Error answers in the format of text-generation-inference."""

import json
import logging

import pytest
from aiohttp import web

from router.errors import (
    GenerationFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    TemplateFailed,
    TimedOut,
    ToolsFailed,
)
from router.http.transport.errors import Told


@pytest.mark.parametrize(("error", "status", "error_type", "text"), [
    (InvalidRequest("bad"), 422, "validation", "Input validation error: bad"),
    (TemplateFailed("no roles"), 422, "template_error", "Template error: no roles"),
    (ToolsFailed("not both"), 422, "tool_error", "Tool error: not both"),
    (Overloaded("full"), 429, "overloaded", "Model is overloaded: full"),
    (NotReady("starting"), 503, "overloaded", "Model is not ready: starting"),
    (GenerationFailed("broken"), 424, "generation", "Request failed during generation: broken"),
    (TimedOut("too late"), 408, "timeout", "Request timed out: too late"),
    (web.HTTPUnauthorized(text="a key is needed"), 401, "unauthorized", "a key is needed"),
    (web.HTTPNotFound(), 404, "not_found", "404: Not Found"),
])
def test_an_error_has_a_status_a_type_and_a_text(error, status, error_type, text):
    told = Told.of(error)
    assert told.status == status
    assert json.loads(told.json()) == {"error": text, "error_type": error_type}


def test_what_is_not_ours_is_logged_and_kept_from_the_client(caplog):
    with caplog.at_level(logging.ERROR):
        told = Told.of(KeyError("/a/secret/path"))
    assert (told.status, told.text) == (500, "Internal server error")
    assert "/a/secret/path" in caplog.text


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.2, "2"), (30.0, "30")])
def test_a_refusal_says_when_to_come_back(seconds, header):
    assert Told.of(Overloaded("full", retry_after=seconds)).response().headers["Retry-After"] == header


def test_other_errors_do_not_ask_to_come_back():
    assert "Retry-After" not in Told.of(InvalidRequest("bad")).response().headers


@pytest.mark.parametrize("error", [
    InvalidRequest("x" * 10**6), TemplateFailed("x" * 10**6), web.HTTPBadRequest(text="x" * 10**6)])
def test_an_error_repeats_no_more_than_some_of_what_the_client_sent(error):
    """Regression: a tool choice of a megabyte was answered with an error of a megabyte."""
    assert len(Told.of(error).json()) < 600
