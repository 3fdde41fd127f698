"""`weft explain`, against a scripted server."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from launcher.client import explain
from launcher.client.chat_client import ChatRequestFailed
from launcher.client.explain import fetch_explanation, format_explanation, format_requests, run_explain_command

EXPLANATION: dict[str, Any] = {
    "id": "slow-1", "tenant": "", "state": "over", "prompt_tokens": 4, "cached_tokens": 0, "generated_tokens": 30,
    "total_ms": 20_000.0, "intervals": [], "by_cause": {"validation": 0.5, "queue": 12_000.0, "decode": 7_999.5},
    "causes": {"validation": "It was checked.", "queue": "Others were\x1b[2J before it.",
               "decode": "Tokens were made."},
    "meanwhile": {"queue": {"blocks": 11_000.0}}, "meanwhile_causes": {"blocks": "There was\u2028no room."},
    "meanwhile_prompts": [{"id": "long-1", "prompt_tokens": 1700, "cached_tokens": 1600, "ms": 207.125},
                          {"id": "old-1", "prompt_tokens": 50, "ms": 7.0}],
    "meanwhile_generating": 12.5}


def fetch_from_server(status: int, response_json: Any, request_id: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return the client's result, and path and key of the requests that the server received."""
    received: list[tuple[str, str]] = []

    async def serve(request: web.Request) -> web.Response:
        received.append((request.rel_url.raw_path, request.headers.get("Authorization", "")))
        return web.json_response(response_json, status=status)

    async def main() -> dict[str, Any]:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", serve)])
        async with TestServer(app) as server:
            return await fetch_explanation(str(server.make_url("/v1")), request_id, "sk-one")
    return asyncio.run(main()), received


def test_request_id_is_escaped_and_the_key_is_sent() -> None:
    result, received = fetch_from_server(200, EXPLANATION, "a/b c")
    assert result == EXPLANATION
    assert received == [("/v1/requests/a%2Fb%20c/explain", "Bearer sk-one")]


def test_unknown_request_raises_with_the_reason_of_the_server() -> None:
    with pytest.raises(ChatRequestFailed, match="the server answered 404: there is no request of this id"):
        fetch_from_server(404, {"error": "there is no request of this id", "error_type": "not_found"}, "a")


def test_longest_cause_is_listed_first_with_its_share() -> None:
    assert format_explanation(EXPLANATION).splitlines() == [
        "slow-1 (over): 20.0 s, 4 prompt tokens, 0 of them cached, 30 generated (one every 275.8 ms)",
        "queue          12.0 s   60 %  Others were[2J before it.",
        "               11.0 s  of it: There was no room.",
        "decode      7999.5 ms   40 %  Tokens were made.",
        "validation     0.5 ms    0 %  It was checked.",
        "longest prompts of other requests in this time: long-1 (1700 tokens, 1600 of them cached, 207.1 ms), "
        "old-1 (50 tokens, 7.0 ms)",
        "on average 12.5 other sequences were generated at the same time"]


def test_failure_stands_beside_the_state() -> None:
    failed = {**EXPLANATION, "error_type": "validation"}
    assert format_explanation(failed).startswith("slow-1 (over, validation): ")
    assert "over, validation" in format_requests([failed])


@pytest.mark.parametrize("answer", [[], {"error": "x"}, {**EXPLANATION, "by_cause": 3}])
def test_answer_of_another_server_is_reported_in_one_line(answer: Any, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    async def fetch(*_: str) -> Any:
        return answer
    monkeypatch.setattr(explain, "fetch_explanation", fetch)
    assert run_explain_command("http://loom", "a", "", as_json=False) == 1
    assert capsys.readouterr().err == "weft: http://loom answers in another format; is it weft, and of this version?\n"


def test_server_that_does_not_run_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_explain_command("http://127.0.0.1:9", "a", "", as_json=False) == 1
    assert capsys.readouterr().err.startswith("weft: cannot reach http://127.0.0.1:9")


def test_without_an_id_the_list_of_requests_is_fetched() -> None:
    result, received = fetch_from_server(200, {"requests": []}, "")
    assert result == {"requests": []}
    assert received == [("/v1/requests", "Bearer sk-one")]


def test_requests_are_listed_with_what_took_most_of_their_time() -> None:
    fast = {**EXPLANATION, "id": "a\x1b b", "state": "running", "total_ms": 1.5, "by_cause": {"validation": 1.5}}
    assert format_requests([fast, EXPLANATION]).splitlines() == [
        "request  state      time  prompt  cached  generated  most of it",
        "a b      running  1.5 ms       4       0         30  validation 1.5 ms",
        "slow-1   over     20.0 s       4       0         30  queue 12.0 s"]


def test_server_without_requests_is_reported(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    async def fetch(*_: str) -> Any:
        return {"requests": []}
    monkeypatch.setattr(explain, "fetch_explanation", fetch)
    assert run_explain_command("http://loom", "", "", as_json=False) == 0
    assert capsys.readouterr().out == "no requests yet, or none of this key\n"
