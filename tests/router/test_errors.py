"""Name of the request's field in an error."""

import pytest

from router.errors import ChatTemplateFailed, InvalidRequest, InvalidTools


@pytest.mark.parametrize(("error", "param"), [
    (InvalidRequest("`max_tokens` must be at least 1, got 0"), "max_tokens"),
    (InvalidRequest("`response_format.json_schema` is missing"), "response_format"),
    (InvalidRequest("`stop` and `seed` exclude each other"), "stop"),
    (InvalidRequest("a string in `stop` is too long", param="stop"), "stop"),
    (InvalidRequest("the header `x-request-timeout-ms` must be a number"), ""),
    (InvalidRequest("this model makes embeddings"), ""),
    (InvalidTools("`tool_choice` must be `auto`"), "tool_choice"),
    (ChatTemplateFailed("`anything` a template says"), "messages"),
])
def test_error_names_the_field_that_its_message_begins_with(error, param):
    assert error.param == param
