"""Arguments of the commands that other modules run."""

import pytest

from launcher.command_line.delegated_subcommands import DEFAULT_SERVER_URL, resolve_server_url


def test_server_without_a_scheme_is_reached_over_http() -> None:
    assert resolve_server_url("here:3000") == "http://here:3000"
    assert resolve_server_url("https://here") == "https://here"


def test_port_names_a_server_on_this_machine() -> None:
    assert resolve_server_url(DEFAULT_SERVER_URL, 3001) == "http://127.0.0.1:3001"


def test_port_beside_the_url_of_another_server_is_refused() -> None:
    with pytest.raises(ValueError, match="--port 3001 and --url http://there name two servers"):
        resolve_server_url("http://there", 3001)
