"""`weft top`: its screen, lines and JSON, from scripted events and from a server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.servers.in_process_server import make_generate_body, play_scenario

from launcher.client import top
from launcher.client.chat_client import ChatRequestFailed
from launcher.client.engine_events import EngineView
from launcher.client.top import TopSettings, describe_view, format_summary, format_view, run_top_command

ENTRY = {"own": True, "tenant": "", "tenant_ordinal": 1, "adapter": None, "adapter_ordinal": 0, "submitted_at": 100.0,
         "prompt_tokens": 20, "max_new_tokens": 9}
RATES = {"window_seconds": 1.0, "tokens_per_second": 812.4, "prompt_tokens_per_second": 30.0,
         "requests_per_second": 3.0, "first_token_ms": {"p50": 21.3, "p99": 80.2}, "gap_ms": {"p50": 8.4, "p99": None},
         "batch_size": 7.5, "step_ms": 7.9}
STATE: dict[str, Any] = {
    "t": 101.5, "step": 4, "server": {
        "model": "loom", "version": "1.0", "device": "cpu", "dtype": "float32", "num_shard": 1, "ready": False,
        "not_ready_reason": "the shards are lost", "max_batch_size": 8},
    "running": [
        {**ENTRY, "id": 7, "request_id": "mine", "lane": 1, "state": "decode", "prefilled_tokens": 20,
         "generated_tokens": 3},
        {**ENTRY, "id": 9, "own": False, "request_id": None, "tenant": None, "tenant_ordinal": 2, "adapter_ordinal": 3,
         "lane": 0, "state": "prefill", "prefilled_tokens": 16, "generated_tokens": 0}],
    "queue": {"length": 1, "tokens": 1020, "waiting": [
        {**ENTRY, "id": 11, "request_id": "evil\x1b[2J", "tenant": "acme", "adapter": "pirate", "cause": "batch",
         "prompt_tokens": 1020, "generated_tokens": 0}]},
    "blocks": {"total": 100, "used": 30, "cached": 20, "free": 50, "shared": 4, "map": [[0, 100]]}, "rates": RATES}
LINES = [
    "loom on 1 cpu (float32), weft 1.0, not ready: the shards are lost",
    "2 running, 1 waiting",
    "812.4 tokens/s, 30.0 prompt tokens/s, 3.0 requests/s",
    "first token 21.3/80.2 ms (p50/p99), gap 8.4/- ms (p50/p99)",
    "step 7.9 ms, 7.5 rows",
    "cache [######++++..........] 30 used (4 shared), 20 cached, 50 free of 100 blocks",
    "",
    "running 2 of 8",
    "lane  id  state    prompt  generated    age  tenant  adapter  request",
    "   0   9  prefill   16/20        0/9  1.5 s  #2      #3       -",
    "   1   7  decode       20        3/9  1.5 s  -       -        mine",
    "",
    "waiting 1, 1,020 tokens",
    "id  prompt    age  cause  tenant  adapter  request",
    "11    1020  1.5 s  batch  acme    pirate   evil[2J"]


def make_view() -> EngineView:
    view = EngineView()
    view.apply(("state", json.loads(json.dumps(STATE))))
    return view


def script_events(monkeypatch: pytest.MonkeyPatch, *events: tuple[str, Any], ends: bool = True) -> None:
    @asynccontextmanager
    async def open_scripted(*_: str) -> AsyncIterator[AsyncIterator[Any]]:
        async def iterate() -> AsyncIterator[Any]:
            for event in json.loads(json.dumps(events)):
                yield tuple(event)
            if not ends:
                await asyncio.sleep(60)

        yield iterate()
    monkeypatch.setattr(top, "open_engine_events", open_scripted)
    monkeypatch.setattr(top, "ONCE_SECONDS", 0.05)


def test_screen_shows_batch_queue_rates_and_cache() -> None:
    assert format_view(make_view(), 120) == LINES


@pytest.mark.parametrize("width", [20, 40, 60, 79])
def test_narrow_screen_leaves_out_the_last_columns(width: int) -> None:
    lines = format_view(make_view(), width)
    assert max(map(len, lines)) <= width
    assert len(lines) == len(LINES)
    assert any(line.startswith("lane  id  state") for line in lines)
    assert ("request" in lines[8]) == (width > 67)


def test_screen_follows_the_readiness_of_the_server() -> None:
    """Regression: it said that the shards are lost until it was started anew."""
    view = make_view()
    frame = {"t": 102.0, "step": 4, "steps": [], "sequences": [],
             "server": {"ready": True, "not_ready_reason": None, "has_shards": True}}
    view.apply(("frame", frame))
    assert format_view(view, 120)[0] == "loom on 1 cpu (float32), weft 1.0, ready"
    reason = {"ready": False, "not_ready_reason": "it stops", "has_shards": True}
    view.apply(("frame", {**frame, "server": reason}))
    assert format_view(view, 120)[0].endswith("not ready: it stops")


def test_line_has_all_figures() -> None:
    assert format_summary(make_view()) == "  ".join([*LINES[1:5], "cache 30%"])


def test_json_has_the_form_of_the_state() -> None:
    described = describe_view(make_view())
    assert described.keys() == STATE.keys()
    assert described["running"] == sorted(STATE["running"], key=lambda entry: int(entry["lane"]))


def test_once_prints_the_screen_and_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script_events(monkeypatch, ("state", STATE), ends=False)
    monkeypatch.setenv("COLUMNS", "120")
    assert run_top_command(TopSettings("http://loom", is_once=True)) == 0
    assert capsys.readouterr().out.splitlines() == LINES


def test_without_a_terminal_lines_are_printed(monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    script_events(monkeypatch, ("state", STATE), ("frame", {"t": 1.0, "step": 4, "steps": [], "sequences": []}))
    assert run_top_command(TopSettings("http://loom")) == 1
    output = capsys.readouterr()
    assert output.out == format_summary(make_view()) + "\n"  # one a second
    assert output.err == "weft: the server ended the events; it is shutting down\n"


def test_json_without_once_is_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    script_events(monkeypatch, ("state", STATE), ("frame", {"t": 1.0}))
    assert run_top_command(TopSettings("http://loom", as_json=True)) == 1
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"event": "state", **STATE}, {"event": "frame", "t": 1.0}]


def test_terminal_shows_the_screen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script_events(monkeypatch, ("state", STATE))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "100"), ("LINES", "30")):
        monkeypatch.setenv(name, value)
    assert run_top_command(TopSettings("http://loom")) == 1
    output = capsys.readouterr().out
    assert all(line in output for line in LINES)


@pytest.mark.parametrize("state", [{}, {"server": {}}, {**STATE, "rates": None}])
def test_answer_of_another_server_is_reported_in_one_line(state: Any, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    script_events(monkeypatch, ("state", state))
    assert run_top_command(TopSettings("http://loom", is_once=True)) == 1
    assert capsys.readouterr().err.startswith("weft: http://loom ")


def test_server_that_does_not_run_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_top_command(TopSettings("http://127.0.0.1:9", is_once=True)) == 1
    assert capsys.readouterr().err.startswith("weft: cannot reach http://127.0.0.1:9")


def test_interrupt_and_closed_output_end_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((KeyboardInterrupt, 0), (ChatRequestFailed("x"), 1)):
        def fail(*_: Any, error: Any = error) -> None:
            raise error
        monkeypatch.setattr(top, "watch_engine", fail)
        assert run_top_command(TopSettings("http://loom")) == code


def test_view_of_a_server_under_load_is_its_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(weft: Any) -> None:
        submitted = weft.watch_scheduler_calls("submit")
        tasks = [asyncio.create_task(weft.http_session.post("/generate", json=make_generate_body(f"{number}", 20)))
                 for number in range(5)]
        for _ in tasks:  # before the first step ends, so that the third has as many of them as fit
            await submitted.get()
        for _ in range(5):
            await weft.gate.wait_for_step()
            weft.gate.release_steps(1)
        await weft.gate.wait_for_step()  # so that the fourth is over: at most two are sent at a time
        settings = TopSettings(f"http://127.0.0.1:{weft.port}", is_once=True, as_json=True)
        assert await asyncio.to_thread(run_top_command, settings) == 0
        weft.gate.release_all()
        for task in tasks:
            (await task).close()
    play_scenario(scenario, tmp_path, http=True, gated=True, max_batch_size=3)
    state = json.loads(capsys.readouterr().out)
    assert [(entry["lane"], entry["state"]) for entry in state["running"]] == [(0, "decode"), (1, "decode"),
                                                                              (2, "decode")]
    assert state["queue"]["length"] == 2
    assert state["server"]["max_batch_size"] == 3
    assert sum(length for _, length in state["blocks"]["map"]) == state["blocks"]["total"]
