"""Tests of `--otlp-endpoint` with real processes and a collector that receives their spans."""

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from support.trace_collector import PARENT, SERVER, Collected, Collector, collecting
from support.weft_process import SIMULATED, Weft, serving, tokens

pytestmark = pytest.mark.slow

PROMPT = "all that is woven " * 20  # several steps with room for 64 tokens


def chat(weft: Weft, **headers: str) -> str:
    """Send a chat and return its request id."""
    body = json.dumps({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "seed": 7}).encode()
    head = {"content-type": "application/json", **headers}
    with urlopen(Request(f"{weft.url}/v1/chat/completions", body, head)) as told:
        assert json.load(told)["usage"]["completion_tokens"] == 5
        return str(told.headers["x-request-id"])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, str]]:
    """Collect the spans of two shards and their router: a chat within a client's trace, and a stream.

    Yield the collector and the request id of the chat.
    """
    with collecting() as (collector, address):
        settings = ("--num-shard", "2", "--otlp-endpoint", address, "--max-batch-prefill-tokens", "64")
        with serving(tmp_path_factory.mktemp("served"), SIMULATED, *settings) as weft:
            name = chat(weft, traceparent=PARENT, tracestate="congo=t61rcWkgMzE")
            assert len(list(tokens(weft.post("/generate_stream", 3)))) == 3
            weft.signal(signal.SIGTERM)
            assert weft.end()[0] == 0
        yield collector, name


@pytest.fixture
def collector(told: tuple[Collector, str]) -> Collector:
    return told[0]


@pytest.fixture
def chatted(collector: Collector) -> Collected:
    return collector.one(f"chat {SIMULATED}")


def test_the_request_is_a_part_of_the_trace_that_its_client_began(
        told: tuple[Collector, str], chatted: Collected) -> None:
    assert (chatted.parent, chatted.span.trace_state, chatted.span.kind) == (PARENT, "congo=t61rcWkgMzE", SERVER)
    expected = {"gen_ai.operation.name": "chat", "gen_ai.response.id": told[1], "gen_ai.request.seed": 7,
                "gen_ai.usage.output_tokens": 5, "gen_ai.response.finish_reasons": ["length"],
                "http.response.status_code": 200}
    assert chatted.attributes | expected == chatted.attributes
    assert "woven" not in repr(told[0].spans)


def test_what_its_time_went_to_lies_within_it_one_after_the_other(collector: Collector, chatted: Collected) -> None:
    own = [part for part in collector.below(chatted) if part.span.name != "prefill step"]
    assert [part.span.name for part in own] == ["validation", "queue", "prefill", "decode"]
    assert all(chatted.holds(part) for part in own)
    assert [part.times[0] for part in own[1:]] == [part.times[1] for part in own[:-1]]


def test_every_shard_tells_of_every_step_that_ran_a_part_of_the_prompt(
        collector: Collector, chatted: Collected) -> None:
    """All processes share the clock of this machine, so the shards' spans are within the router's."""
    steps = [part for part in collector.below(chatted) if part.span.name == "prefill step"]
    for rank in (0, 1):
        own = [part.attributes for part in steps if part.attributes["weft.rank"] == rank]
        assert len(own) > 2
        assert sum(part["weft.chunk.tokens"] for part in own) == chatted.attributes["gen_ai.usage.input_tokens"]
        assert len({part["weft.step"] for part in own}) == len(own)
    assert all(chatted.holds(part) for part in steps)


def test_a_request_without_a_parent_begins_a_trace(collector: Collector, chatted: Collected) -> None:
    stream = collector.one(f"text_completion {SIMULATED}")
    assert (stream.parent, stream.attributes["gen_ai.request.stream"]) == ("", True)
    assert stream.trace != chatted.trace
    assert {part.span.name for part in collector.below(stream)} >= {"prefill", "prefill step"}


def test_processes_are_told_apart_under_one_name(collector: Collector) -> None:
    senders = {(part.resource["service.name"], part.resource["weft.process"]) for part in collector.spans}
    assert senders == {("weft", "router"), ("weft", "shard 0"), ("weft", "shard 1")}


def test_a_collector_that_is_not_there_disturbs_nobody_and_is_told_of_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    with serving(tmp_path, SIMULATED, "--otlp-endpoint", nobody) as weft:
        for _ in range(3):
            chat(weft)
        weft.signal(signal.SIGTERM)
        code, errors = weft.end()
    assert (code, errors.count("traces are lost")) == (0, 1)
    assert "Traceback" not in errors


def test_a_parent_that_makes_no_sense_is_no_reason_to_refuse(tmp_path: Path) -> None:
    with collecting() as (collector, address), serving(tmp_path, SIMULATED, "--otlp-endpoint", address) as weft:
        chat(weft, traceparent="00-woven", tracestate="=")
        weft.signal(signal.SIGTERM)
        assert weft.end()[0] == 0
        assert collector.one(f"chat {SIMULATED}").parent == ""
