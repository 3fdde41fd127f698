"""Tests of chats over real sockets with a simulated model, and of `weft chat` as a user runs it."""

import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.in_process_server import events_of, play
from support.weft_process import SIMULATED, WEFT, serving


def test_a_chat_says_what_its_prompt_says_on_the_other_route(tmp_path: Path) -> None:
    async def story(weft: Any) -> None:
        asked = {"messages": [{"role": "user", "content": "a loom"}], "max_tokens": 20, "temperature": 0}
        expected = weft.expected_text("user: a loom\nassistant: ", 20)
        async with weft.http.post("/v1/chat/completions", json=asked) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == expected
        async with weft.http.post("/v1/chat/completions", json=asked | {"stream": True}) as answer:
            text = await answer.text()
        chunks = events_of(text.removesuffix("data: [DONE]\n\n"))
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == expected
        await weft.check_idle()
    play(story, tmp_path, http=True)


@pytest.mark.parametrize("stop", ["ik s", "n "])
def test_a_chat_ends_with_its_stop_string_in_both_ways(tmp_path: Path, stop: str) -> None:
    async def story(weft: Any) -> None:
        asked = {"messages": [{"role": "user", "content": "a loom"}], "max_tokens": 200, "temperature": 0, "stop": stop}
        async with weft.http.post("/v1/chat/completions", json=asked) as answer:
            [choice] = (await answer.json())["choices"]
        async with weft.http.post("/v1/chat/completions", json=asked | {"stream": True}) as answer:
            chunks = events_of((await answer.text()).removesuffix("data: [DONE]\n\n"))
        assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == choice["message"]["content"]
        assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]
        assert choice["message"]["content"].count(stop) == (choice["finish_reason"] == "stop")
    play(story, tmp_path, http=True)


def chat(folder: Path, *arguments: str, typed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WEFT, "chat", *arguments], cwd=folder, input=typed, capture_output=True, text=True,
                          check=False)


@pytest.mark.slow
def test_questions_from_a_pipe_are_answered(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED, "--simulated-time-scale", "0.01") as weft:
        ended = chat(tmp_path, "--url", weft.url, "--max-tokens", "12", "--temperature", "0", typed="hi\nmore\n")
        assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 2)
        assert ended.stderr.count("· 12 tokens\n") == 2
        again = chat(tmp_path, "--url", weft.url, "--max-tokens", "12", "--temperature", "0", typed="hi\n")
        assert again.stdout == ended.stdout.splitlines(keepends=True)[0]


@pytest.mark.slow
def test_a_key_is_sent_and_seen_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_API_KEY", "sk-secret")
    with serving(tmp_path, SIMULATED) as weft:
        assert chat(tmp_path, "--url", weft.url, "--max-tokens", "3", typed="hi\n").returncode == 0
        refused = chat(tmp_path, "--url", weft.url, "--api-key", "sk-other", typed="hi\n")
        assert refused.returncode == 1
        assert refused.stderr.startswith("weft: the server answered 401: a key is needed")


@pytest.mark.slow
def test_an_interrupt_at_a_terminal_stops_the_answer_and_the_chat_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, SIMULATED) as weft:
        mine, its = pty.openpty()
        process = subprocess.Popen([WEFT, "chat", "--url", weft.url, "--max-tokens", "1000"], stdin=its, stdout=its,
                                   stderr=its, start_new_session=True)
        os.close(its)
        read_to(mine, b"> ")
        os.write(mine, b"hi\n")
        read_to(mine, b"hi\r\n")
        os.read(mine, 1)  # the first byte of the answer
        os.killpg(process.pid, signal.SIGINT)
        read_to(mine, b"stopped")
        read_to(mine, b"> ")
        os.write(mine, b"/exit\n")
        assert process.wait() == 0
        os.close(mine)


def read_to(descriptor: int, end: bytes) -> None:
    heard = b""
    while not heard.endswith(end):
        heard += os.read(descriptor, 1)
