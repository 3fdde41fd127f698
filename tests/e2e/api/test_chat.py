"""Tests of chats over real sockets with a simulated model, and of `weft chat` as a user runs it."""

import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.in_process_server import parse_stream_events, play_scenario
from support.servers.weft_process import SIMULATED_MODEL, WEFT_EXECUTABLE, WeftProcess, run_weft_process


def test_chat_answer_is_that_of_its_rendered_prompt(tmp_path: Path) -> None:
    async def scenario(weft: Any) -> None:
        body = {"messages": [{"role": "user", "content": "a loom"}], "max_tokens": 20, "temperature": 0}
        expected = weft.compute_expected_text("user: a loom\nassistant: ", 20)
        async with weft.http_session.post("/v1/chat/completions", json=body) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == expected
        async with weft.http_session.post("/v1/chat/completions", json=body | {"stream": True}) as answer:
            text = await answer.text()
        chunks = parse_stream_events(text.removesuffix("data: [DONE]\n\n"))
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == expected
        await weft.check_idle()
    play_scenario(scenario, tmp_path, http=True)


@pytest.mark.parametrize("stop", ["ik s", "n "])
def test_chat_ends_at_the_stop_string_streamed_or_not(tmp_path: Path, stop: str) -> None:
    async def scenario(weft: Any) -> None:
        body = {"messages": [{"role": "user", "content": "a loom"}], "max_tokens": 200, "temperature": 0, "stop": stop}
        async with weft.http_session.post("/v1/chat/completions", json=body) as answer:
            [choice] = (await answer.json())["choices"]
        async with weft.http_session.post("/v1/chat/completions", json=body | {"stream": True}) as answer:
            chunks = parse_stream_events((await answer.text()).removesuffix("data: [DONE]\n\n"))
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == choice["message"]["content"]
        assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]
        assert stop not in choice["message"]["content"]
        async with weft.http_session.post("/v1/chat/completions", json=body | {
                "include_stop_str_in_output": True}) as answer:
            [kept] = (await answer.json())["choices"]
        end = stop if choice["finish_reason"] == "stop" else ""
        assert kept == choice | {"message": choice["message"] | {"content": choice["message"]["content"] + end}}
    play_scenario(scenario, tmp_path, http=True)


@pytest.fixture(scope="module")
def weft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeftProcess]:
    """Run a server that wants a key, and let `weft chat` find it in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEFT_API_KEY", "sk-secret")
        with run_weft_process(tmp_path_factory.mktemp("weft"), SIMULATED_MODEL) as server:
            yield server


def run_weft_chat(folder: Path, *arguments: str, stdin_text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WEFT_EXECUTABLE, "chat", *arguments], cwd=folder, input=stdin_text, capture_output=True,
                          text=True, check=False)


@pytest.mark.slow
def test_weft_chat_answers_questions_from_a_pipe(weft: WeftProcess, tmp_path: Path) -> None:
    ended = run_weft_chat(tmp_path, "--url", weft.url, "--max-tokens", "12", "--temperature", "0",
                          stdin_text="hi\nmore\n")
    assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 2)
    assert ended.stderr.count("· 12 tokens\n") == 2
    again = run_weft_chat(tmp_path, "--url", weft.url, "--max-tokens", "12", "--temperature", "0", stdin_text="hi\n")
    assert again.stdout == ended.stdout.splitlines(keepends=True)[0]


@pytest.mark.slow
def test_weft_chat_sends_the_api_key(weft: WeftProcess, tmp_path: Path) -> None:
    assert run_weft_chat(tmp_path, "--url", weft.url, "--max-tokens", "3", stdin_text="hi\n").returncode == 0
    refused = run_weft_chat(tmp_path, "--url", weft.url, "--api-key", "sk-other", stdin_text="hi\n")
    assert refused.returncode == 1
    assert refused.stderr.startswith("weft: the server answered 401: the key is not one of this server's")


@pytest.mark.slow
def test_interrupt_at_a_terminal_stops_the_answer_but_not_the_chat(weft: WeftProcess) -> None:
    terminal, child_terminal = pty.openpty()
    process = subprocess.Popen([WEFT_EXECUTABLE, "chat", "--url", weft.url, "--max-tokens", "1000"],
                               stdin=child_terminal, stdout=child_terminal, stderr=child_terminal,
                               start_new_session=True)
    os.close(child_terminal)
    read_until(terminal, b"> ")
    os.write(terminal, b"hi\n")
    read_until(terminal, b"hi\r\n")
    os.read(terminal, 1)  # the first byte of the answer
    os.killpg(process.pid, signal.SIGINT)
    read_until(terminal, b"stopped")
    read_until(terminal, b"> ")
    os.write(terminal, b"/exit\n")
    assert process.wait() == 0
    os.close(terminal)


def read_until(descriptor: int, end: bytes) -> None:
    received = b""
    while not received.endswith(end):
        received += os.read(descriptor, 1)
