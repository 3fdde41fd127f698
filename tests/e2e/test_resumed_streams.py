"""Streams that go on at another server, with all processes of two servers of the demo model."""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support.process_list import list_child_pids
from support.servers.weft_process import WeftProcess, run_weft_process

REPOSITORY_ROOT = Path(__file__).parents[2]
PROMPTS = ("Once upon a time", "Count to five.", "Who is it?", "Tell me a story.")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
CHANGING_FIELDS = re.compile(rb'"id":"(chatcmpl-|cmpl-|call_)[0-9a-f]+"|"created":\d+')
NUM_TOKENS = 200  # of a stream whose server ends
TOKEN_IDS = re.compile(rb'"token_ids":\[(\d+)\]|"token":\{"id":(\d+),')
Servers = tuple[WeftProcess, WeftProcess]

pytestmark = pytest.mark.slow


@contextmanager
def run_first_server(folder: Path) -> Iterator[WeftProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))  # the folder of a killed server's sockets stays behind
        with run_weft_process(folder, "--no-request-log", "--shutdown-timeout", "0") as server:
            yield server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Run two servers, of which the last tests end the first."""
    with (run_first_server(tmp_path_factory.mktemp("first")) as first,
          run_weft_process(tmp_path_factory.mktemp("second"), "--no-request-log") as second):
        yield first, second


@pytest.fixture
def victim(servers: Servers, tmp_path: Path) -> Iterator[WeftProcess]:
    """A server that a test ends: the first one, or another if that has ended."""
    if servers[0].process.returncode is None:
        yield servers[0]
    else:
        with run_first_server(tmp_path) as server:
            yield server


def read_stream(url: str, body: dict[str, Any]) -> list[bytes]:
    """Return the events of a stream, without the fields that two answers to the same request do not share."""
    with urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"})) as answer:
        return CHANGING_FIELDS.sub(b"", answer.read()).split(b"\n\n")


def find_token_id(event: bytes) -> int | None:
    match = TOKEN_IDS.search(event)
    return None if match is None else int(match[1] or match[2])


def draw_parameters(rng: random.Random) -> dict[str, Any]:
    """Return parameters that all routes take; half of them sample."""
    sampling = {"temperature": rng.choice([0.5, 1.0, 1.5]), "seed": rng.getrandbits(53)}
    parameters: dict[str, Any] = sampling if rng.random() < 0.5 else {}
    if rng.random() < 0.3:
        parameters["repetition_penalty"] = 1.3
    if rng.random() < 0.3:
        parameters["frequency_penalty"] = 0.7
    if rng.random() < 0.3:
        parameters["stop"] = [rng.choice([" and", "the ", ".", "4,"])]
    return parameters


def draw_request(rng: random.Random) -> tuple[str, dict[str, Any], str]:
    """Return a route, the body of a stream, and the name of the object that has the parameters."""
    parameters, prompt, max_tokens = draw_parameters(rng), rng.choice(PROMPTS), rng.randint(2, 40)
    path = rng.choice(["/generate_stream", "/v1/completions", "/v1/chat/completions"])
    if path == "/generate_stream":
        grammar = {"grammar": {"type": "json", "value": SCHEMA}} if rng.random() < 0.3 else {}
        return path, {"inputs": prompt, "parameters": {
            **parameters, **grammar, "max_new_tokens": max_tokens, "details": True}}, "parameters"
    body = {"temperature": 0, **parameters, "max_tokens": max_tokens, "stream": True, "return_token_ids": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}}
    if rng.random() < 0.3:
        body |= {"min_tokens": max_tokens // 2, "presence_penalty": 0.4}
    if path == "/v1/completions":
        return path, {**body, "prompt": prompt, "logprobs": rng.choice([None, 2]), "echo": rng.random() < 0.3}, ""
    body |= rng.choice([{}, {"tools": [TOOL]}, {"logprobs": True, "top_logprobs": 2}])
    if "tools" in body:
        prompt = "What is the weather in Paris?"
    elif "min_tokens" not in body and rng.random() < 0.4:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    return path, {**body, "messages": [{"role": "user", "content": prompt}]}, ""


def check_drawn_streams(servers: Servers, seed: int, number: int) -> None:
    rng = random.Random(seed)
    for _ in range(number):
        path, body, place = draw_request(rng)
        whole = read_stream(servers[0].url + path, body)
        tokens = [(index, token) for index, event in enumerate(whole, 1)
                  if (token := find_token_id(event)) is not None]
        num_known = rng.randint(0, len(tokens) - 1)
        resumption = {"resume_token_ids": [token for _, token in tokens[:num_known]]}
        resumed_body = body | ({place: body[place] | resumption} if place else resumption)
        rest = read_stream(servers[1].url + path, resumed_body)
        assert rest == whole[tokens[num_known - 1][0] if num_known else 0:], (path, resumed_body)


def test_stream_goes_on_at_another_server_where_it_stopped(servers: Servers) -> None:
    """Text, tokens, logprobs, calls, finish reason and usage, with all kinds of parameters."""
    check_drawn_streams(servers, 0, 24)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_thousand_streams_go_on_where_they_stopped(servers: Servers) -> None:
    check_drawn_streams(servers, 1, 1000)


# -- the client of docs/concepts/failures.md

StreamChat = Callable[..., Iterator[dict[str, Any]]]


@pytest.fixture(scope="module")
def stream_chat() -> StreamChat:
    page = (REPOSITORY_ROOT / "docs/concepts/failures.md").read_text()
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["stream_chat"]  # type: ignore[no-any-return]


def kill_processes(server: WeftProcess) -> None:
    """Kill a launcher with all its children, like a machine that loses power."""
    pids = list_child_pids(server.process.pid)
    for pid in (server.process.pid, *pids):
        os.kill(pid, signal.SIGKILL)
    server.wait_for_exit()


def stop_processes(server: WeftProcess) -> None:
    """Stop a server whose requests get no time to finish: their streams end with an error event."""
    server.send_signal(signal.SIGTERM)
    server.wait_for_exit()


def get_output(chunks: list[dict[str, Any]]) -> tuple[str, list[int]]:
    """Return the text and the tokens of an answer."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return ("".join(choice["delta"].get("content") or "" for choice in choices),
            [token for choice in choices for token in choice.get("token_ids", ())])


def test_client_raises_what_no_other_server_would_answer(
        servers: Servers, stream_chat: StreamChat) -> None:
    with pytest.raises(OSError, match="400"):
        list(stream_chat([server.url for server in servers], {"messages": []}))


@pytest.mark.parametrize(("end_server", "sampling"), [
    (kill_processes, {"temperature": 1.0, "seed": 11}),
    *(pytest.param(end_server, {"temperature": 0}, marks=pytest.mark.long)
      for end_server in (kill_processes, stop_processes))])
def test_client_goes_on_at_the_other_server_when_one_ends(
        servers: Servers, victim: WeftProcess, stream_chat: StreamChat,
        end_server: Callable[[WeftProcess], None], sampling: dict[str, Any]) -> None:
    chat = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": NUM_TOKENS, "ignore_eos": True,
            "stream_options": {"include_usage": True}, **sampling}
    other, chunks, has_ended = servers[1], list[dict[str, Any]](), False
    for chunk in stream_chat([victim.url, other.url], chat):
        chunks.append(chunk)
        if len(chunks) == 5 and not has_ended:
            has_ended = True
            end_server(victim)
    _, tokens = get_output(chunks)
    assert len({chunk["id"] for chunk in chunks}) == 2, "both servers have answered"
    assert len(tokens) == chunks[-1]["usage"]["completion_tokens"] == NUM_TOKENS
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1
    assert get_output(chunks) == get_output(list(stream_chat([other.url], chat)))
