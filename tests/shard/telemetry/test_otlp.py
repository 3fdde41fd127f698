"""Spans sent over gRPC to a collector in this process."""

import logging
import socket
import threading
from typing import Any

import grpc
import pytest
from support.span_sender import Notes
from support.trace_collector import ERROR, PARENT, SERVER, Collector, collecting

from shard.telemetry import otlp
from shard.telemetry.otlp import OtlpSender
from shard.telemetry.traces import Sender, Traces

pytestmark = pytest.mark.slow

STATE = "congo=t61rcWkgMzE"
MALFORMED = (
    "", "nonsense", PARENT.upper(), PARENT[:-1], f"{PARENT}-more", PARENT.replace("00-", "ff-", 1),
    f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01", "0" * 10_000,
    PARENT.replace("a", "\udcff"))


def tell(sender: Sender, **headers: str) -> str:
    """Record the span of a request with two children, and a child of another process."""
    span = sender.serve("chat demo", headers, 1_000)
    span.child("queue", 1_100, 1_200, {"weft.wait_reason": "blocks"})
    span.child("prefill", 1_200, 1_300, {})
    if span.traceparent:
        sender.beneath(span.traceparent, "prefill step", 1_210, 1_290, {"weft.rank": 1}, failed=False)
    span.end(1_500, {"gen_ai.usage.input_tokens": 3, "gen_ai.response.finish_reasons": ["stop"],
                     "gen_ai.request.stream": True, "gen_ai.latency.e2e": 0.5}, failed=True)
    return span.traceparent


@pytest.fixture
def sent() -> Any:
    """Function that sends the spans of a request with the given headers; it returns collector and traceparent."""
    def run(**headers: str) -> tuple[Collector, str]:
        troubles: list[str] = []
        with collecting() as (collector, address):
            sender = OtlpSender(Traces(address, "loom"), "shard 1", troubles.append)
            traceparent = tell(sender, **headers)
            sender.close()
        assert troubles == []
        return collector, traceparent
    return run


def test_all_that_is_left_is_sent_at_the_end(sent: Any) -> None:
    collector, traceparent = sent()
    chat = collector.one("chat demo")
    assert (chat.span.kind, chat.span.status.code) == (SERVER, ERROR)
    assert traceparent.startswith(chat.traceparent[:-2])
    assert [below.span.name for below in collector.below(chat)] == ["queue", "prefill", "prefill step"]
    assert all(chat.holds(below) for below in collector.spans)
    assert collector.num_calls == 1


def test_values_arrive_as_they_were(sent: Any) -> None:
    collector, _ = sent()
    assert collector.one("chat demo").attributes == {
        "gen_ai.usage.input_tokens": 3, "gen_ai.response.finish_reasons": ["stop"], "gen_ai.request.stream": True,
        "gen_ai.latency.e2e": 0.5}
    assert collector.one("queue").attributes == {"weft.wait_reason": "blocks"}


def test_who_sends_is_told_with_every_span(sent: Any) -> None:
    for found in sent()[0].spans:
        assert (found.resource["service.name"], found.resource["weft.process"]) == ("loom", "shard 1")


def test_a_trace_that_others_began_goes_on(sent: Any) -> None:
    collector, traceparent = sent(traceparent=PARENT, tracestate=STATE)
    chat = collector.one("chat demo")
    assert (chat.parent, chat.span.trace_state) == (PARENT, STATE)
    assert {found.trace for found in collector.spans} == {PARENT.split("-")[1]}
    assert traceparent != PARENT


def test_a_parent_that_makes_no_sense_is_none() -> None:
    with collecting() as (collector, address):
        sender = OtlpSender(Traces(address), "router", print)
        for header in MALFORMED:
            tell(sender, traceparent=header, tracestate="=,==\udcff" * 100)
        sender.close()
    assert [chat.parent for chat in collector.named("chat demo")] == [""] * len(MALFORMED)
    assert len({chat.trace for chat in collector.spans}) == len(MALFORMED)


def test_of_a_trace_that_nobody_wants_nothing_is_sent(sent: Any) -> None:
    collector, traceparent = sent(traceparent=PARENT.removesuffix("01") + "00")
    assert (collector.spans, traceparent) == ([], "")


def test_the_sender_of_tests_notes_what_a_collector_gets(sent: Any) -> None:
    notes, (collector, _) = Notes(), sent(traceparent=PARENT)
    tell(notes, traceparent=PARENT)
    noted = [(span.name, (span.began, span.ended), span.attributes, span.failed)
             for one in notes.spans for span in (one, *one.children)]
    got = [(found.span.name, found.times, found.attributes, found.span.status.code == ERROR)
           for found in collector.spans]
    assert sorted(noted, key=str) == sorted(got, key=str)
    chat, step = notes.spans
    assert (chat.parent, step.parent) == (PARENT, chat.traceparent)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_a_collector_that_is_not_there_is_told_of_once(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(otlp, "PATIENCE", 0.3)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    troubles: list[str] = []
    sender = OtlpSender(Traces(f"127.0.0.1:{closed_port()}"), "router", troubles.append)
    tell(sender)
    sender.close()
    (told,) = troubles
    assert "UNAVAILABLE" in told
    assert caplog.records == []  # the library's own messages are suppressed


def test_what_ails_the_collector_is_told_again_after_something_got_through() -> None:
    troubles: list[str] = []
    with collecting(grpc.StatusCode.UNIMPLEMENTED) as (collector, address):
        sender = OtlpSender(Traces(address), "router", troubles.append)
        for refusal in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED, None,
                        grpc.StatusCode.PERMISSION_DENIED):
            collector.refusal = refusal
            tell(sender)
            sender._provider.force_flush()
        sender.close()
    assert [told.rpartition("StatusCode.")[2] for told in troubles] == [
        f"{code}, error details: told to refuse" for code in ("UNIMPLEMENTED", "PERMISSION_DENIED")]
    assert len(collector.spans) == 4


def test_a_collector_that_does_not_answer_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` returns after its own timeout, long before that of a call to the collector."""
    monkeypatch.setattr(otlp, "FAREWELL", 0.3)
    monkeypatch.setattr(otlp, "PATIENCE", 100.0)
    troubles: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        sender = OtlpSender(Traces(f"http://127.0.0.1:{deaf.getsockname()[1]}"), "router", troubles.append)
        tell(sender)
        closing = threading.Thread(target=sender.close)
        closing.start()
        closing.join(20.0)
        assert not closing.is_alive()
    assert len(troubles) == 1


def test_the_library_says_nothing_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    otlp.Reasons()
    logging.getLogger("opentelemetry.any").error("so it is")
    assert caplog.records == []
