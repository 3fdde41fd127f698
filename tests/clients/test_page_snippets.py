"""Programs that the page's "copy as" makes: each runs as it is shown and prints the answer that the page got.

The generator is bundled from the page's sources by Node and gets requests as the playground makes them.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support.servers.client_environments import make_client_environment, make_node_environment
from support.servers.weft_process import WeftProcess, run_weft_process

SNIPPETS_SOURCE = Path(__file__).parents[2] / "router/http/page/sources/playground/snippets.ts"
ESBUILD = "esbuild@0.28.2"
KEY = "sk-page"
# The environment of each client, those of test_clients.py, with its packages.
PYTHON_PACKAGES = {
    "openai": ("openai_python", "openai==3.52.0"), "huggingface_hub": ("hub", "huggingface_hub==2.4.0"),
    "text_generation": ("text_generation_client", "text-generation==0.7.0"),
    "lorax": ("lorax_client", "lorax-client==0.6.3", "certifi==2024.7.4"),
}
CLIENTS = ["curl", "javascript", *PYTHON_PACKAGES]
MESSAGES = [{"role": "user", "content": 'Tell me a "story" about\na frog who isn\'t $HOME.'}]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["age"], "additionalProperties": False}
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Tells the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES, "settings": {"temperature": 0, "max_tokens": 24}},
    "sampled chat": {"messages": MESSAGES, "settings": {"seed": 7, "top_p": 0.9, "max_tokens": 24}},
    "chat of an adapter": {"model": "pirate", "messages": MESSAGES, "settings": {"temperature": 0, "max_tokens": 24}},
    "raw": {"prompt": "Once upon a time", "settings": {"temperature": 0, "max_tokens": 24, "stop": ["\n\n"]}},
    "sampled raw": {"prompt": "Once upon a time", "settings": {"seed": 7, "top_k": 40, "max_tokens": 24}},
    "raw of an adapter": {"model": "kjv", "prompt": "Once", "settings": {"temperature": 0, "max_tokens": 24}},
    "schema": {"messages": [{"role": "user", "content": "How old is Ada?"}],
               "settings": {"temperature": 0, "max_tokens": 24, "response_format": JSON_FORMAT}},
    "raw schema": {"prompt": "Ada's age: ", "settings": {"temperature": 0, "max_tokens": 24,
                                                         "response_format": JSON_FORMAT}},
    "tools": {"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
              "settings": {"temperature": 0, "max_tokens": 48, "tools": [TOOL], "tool_choice": "required"}},
    "with a key": {"messages": MESSAGES, "settings": {"temperature": 0, "max_tokens": 24}, "hasKey": True},
}
# Requests that a client cannot send; the page says why.
IMPOSSIBLE = {
    ("text_generation", "chat of an adapter"), ("text_generation", "raw of an adapter"), ("text_generation", "schema"),
    ("lorax", "schema"), ("lorax", "raw schema"), ("lorax", "tools")}

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("weft")) as server:
        yield server


@pytest.fixture(scope="module")
def weft_with_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    with run_weft_process(tmp_path_factory.mktemp("weft"), "--api-key", KEY) as server:
        yield server


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", REQUESTS)
def test_snippet_runs_as_shown_and_prints_the_answer(weft: WeftProcess, weft_with_key: WeftProcess, tmp_path: Path,
                                                     client: str, name: str) -> None:
    server = weft_with_key if REQUESTS[name].get("hasKey") else weft
    request = {"url": server.url, "hasKey": False, "isAdapter": "model" in REQUESTS[name], "model": "weft/demo",
               "prompt": ""} | REQUESTS[name]
    if "messages" in request:
        request["prompt"] = post(server, "/chat_tokenize", {"messages": request["messages"]})["templated_text"]
    snippet = make_snippet(client, request)
    if (client, name) in IMPOSSIBLE:
        assert snippet["code"] == ""
        assert snippet["reason"]
        return
    output = run_snippet(client, snippet["code"], tmp_path)
    assert_shows_answer(client, output, fetch_answer(server, request))


def make_snippet(client: str, request: dict[str, Any]) -> dict[str, str]:
    """Return what the page's generator makes of a request."""
    environment = make_node_environment("snippets", ESBUILD)
    bundle = environment / "snippets.mjs"
    subprocess.run([environment / "node_modules/.bin/esbuild", SNIPPETS_SOURCE, "--bundle", "--format=esm",
                    f"--outfile={bundle}", "--log-level=error"], check=True)
    program = (f'import {{ makeSnippet }} from {json.dumps(bundle.as_uri())};\n'
               f"console.log(JSON.stringify(makeSnippet({json.dumps(client)}, {json.dumps(request)})));")
    completed = subprocess.run(["node", "--input-type=module", "-e", program], capture_output=True, text=True,
                               check=True)
    snippet: dict[str, str] = json.loads(completed.stdout)
    return snippet


def run_snippet(client: str, code: str, folder: Path) -> str:
    (folder / "snippet.mjs").write_text(code)
    if client == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        command: list[str | Path] = ["bash", "-eu", folder / "snippet.mjs"]
    elif client == "javascript":
        make_node_environment("snippets", ESBUILD)  # skips without Node.js
        command = ["node", folder / "snippet.mjs"]
    else:
        environment, *packages = PYTHON_PACKAGES[client]
        command = [make_client_environment(environment, *packages), "-P", folder / "snippet.mjs"]
    path = f"{Path(shutil.which('node') or sys.executable).parent}:/usr/bin:/bin"
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False,
                               env={"HOME": str(folder), "PATH": path, "WEFT_API_KEY": KEY})
    assert completed.returncode == 0, code + completed.stderr[-3000:]
    return completed.stdout


def fetch_answer(server: WeftProcess, request: dict[str, Any]) -> dict[str, Any]:
    """Return the choice that the page gets, from the route that it uses."""
    question = {"messages": request["messages"]} if "messages" in request else {"prompt": request["prompt"]}
    path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
    answer = post(server, path, {"model": request["model"], **question, **request["settings"]})
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def post(server: WeftProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    with urlopen(Request(server.url + path, json.dumps(body).encode(), headers)) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def assert_shows_answer(client: str, output: str, choice: dict[str, Any]) -> None:
    message = choice.get("message", {})
    if message.get("tool_calls"):
        assert "weather" in output
        assert "Paris" in output
    elif client == "curl":
        assert json.loads(output)["choices"][0].get("message", {}).get("content") == message.get("content")
        assert json.loads(output)["choices"][0].get("text") == choice.get("text")
    else:
        assert output.removesuffix("\n") == (message["content"] if message else choice["text"])
