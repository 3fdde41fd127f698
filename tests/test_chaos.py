"""The checks of `make chaos`: they find what they should, plans repeat by their seed, and a short run is green."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.chaos.__main__ import main
from support.chaos.answers import Answer, AnswerReader, compare_with_reference
from support.chaos.fault_plan import FAULT_KINDS, Fault, plan_faults
from support.chaos.faults import FaultRecord
from support.chaos.load import ChaosLoad, RequestRecord, judge_cuts
from support.chaos.report import judge_descriptors, judge_memory, set_recovery_times, summarize_faults, summarize_memory
from support.chaos.request_mix import AnswerFormat, ChaosRequest, draw_requests
from support.chaos.server import ProcessUse
from support.chaos.watch import Sample, compute_slope

MEBIBYTE = 2 ** 20


def sse(*events: Any) -> list[bytes]:
    return [b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode()) for event in events]


def tgi_token(index: int, text: str | None = None) -> dict[str, Any]:
    return {"index": index, "token": {"id": index, "logprob": -0.5}, "generated_text": text,
            "details": {"finish_reason": "length"}}


def chat_chunk(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]}


def read_lines(answer_format: AnswerFormat, lines: list[bytes]) -> Answer:
    reader = AnswerReader(answer_format)
    for line in lines:
        reader.feed_line(line)
    return reader.answer


STREAMS: dict[AnswerFormat, list[bytes]] = {
    "tgi_stream": sse(tgi_token(1), tgi_token(2, "hi")),
    "chat_stream": sse(chat_chunk(0, "h"), chat_chunk(1, "x"), chat_chunk(0, "i", "stop"), chat_chunk(1, "", "stop"),
                       b"[DONE]"),
    "completion_stream": sse({"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}, b"[DONE]"),
    "responses_stream": sse({"type": "response.output_text.delta", "delta": "hi"}, {
        "type": "response.completed", "response": {"status": "completed", "output": [{"content": [{"text": "hi"}]}]}}),
    "messages_stream": sse({"type": "content_block_delta", "delta": {"text": "hi"}},
                           {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}),
    "ollama_stream": [b'{"response": "h", "done": false}', b'{"response": "i", "done": true, "done_reason": "stop"}'],
}
ERRORS: dict[AnswerFormat, list[bytes]] = {
    "tgi_stream": sse({"error": "no", "error_type": "generation"}),
    "chat_stream": sse({"error": {"message": "no"}}, b"[DONE]"),
    "responses_stream": [*sse({"type": "response.failed", "response": {"error": {"message": "no"}}}),
                         b'data: {"type":"error","message":"no"}'],
    "messages_stream": sse({"type": "error", "error": {"message": "no"}}),
    "ollama_stream": [b'{"error": "no"}'],
}


@pytest.mark.parametrize("answer_format", STREAMS)
def test_complete_stream_has_one_terminal_event(answer_format: AnswerFormat) -> None:
    answer = read_lines(answer_format, STREAMS[answer_format])
    assert (answer.num_ends, answer.error, answer.problems, answer.channels["0.text"]) == (1, "", [], "hi")


@pytest.mark.parametrize("answer_format", STREAMS)
def test_stream_without_its_last_line_has_no_terminal_event(answer_format: AnswerFormat) -> None:
    assert read_lines(answer_format, STREAMS[answer_format][:-1]).num_ends == 0


@pytest.mark.parametrize("answer_format", STREAMS)
def test_event_after_the_end_is_a_problem(answer_format: AnswerFormat) -> None:
    lines = STREAMS[answer_format]
    assert read_lines(answer_format, [*lines, lines[-1]]).problems


@pytest.mark.parametrize("answer_format", ERRORS)
def test_error_is_a_terminal_event(answer_format: AnswerFormat) -> None:
    answer = read_lines(answer_format, ERRORS[answer_format])
    assert (answer.num_ends, answer.error, answer.problems) == (1, "no", [])


def test_choice_without_finish_reason_is_a_problem() -> None:
    lines = sse(chat_chunk(0, "h", "stop"), chat_chunk(1, "x"), b"[DONE]")
    assert read_lines("chat_stream", lines).problems == ["[DONE] after 1 finish reasons of 2 choices"]


def test_missing_or_repeated_token_is_a_problem() -> None:
    assert read_lines("tgi_stream", sse(tgi_token(1), tgi_token(3))).problems
    assert read_lines("tgi_stream", sse(tgi_token(1), tgi_token(1))).problems


@pytest.mark.parametrize(("body", "is_problem"), [(b'{"error": "full"}', False), (b"{}", True), (b"<html>", True)])
def test_error_with_a_status_needs_a_message_of_json(body: bytes, is_problem: bool) -> None:
    reader = AnswerReader("chat")
    reader.answer.status = 503
    reader.read_whole(body)
    assert bool(reader.answer.problems) == is_problem


def test_incomplete_answer_must_be_the_beginning_of_the_undisturbed_one() -> None:
    reference = Answer(channels={"0.text": "once upon", "0.finish": "length"})
    cut, wrong = Answer(channels={"0.text": "once"}), Answer(channels={"0.text": "ones"})
    assert compare_with_reference(cut, reference, is_complete=False) == []
    assert compare_with_reference(cut, reference, is_complete=True) == ["0.text: at 4 'once' instead of 'once upon'",
                                                                        "0.finish is missing"]
    assert compare_with_reference(wrong, reference, is_complete=False)


def make_record(end: str, sent_at: float = 10.0, ended_at: float = 20.0, **fields: Any) -> RequestRecord:
    request = ChaosRequest("tgi", "/generate", {}, "tgi")
    return RequestRecord(request, "reads", sent_at, ended_at, end=end, **fields)


@pytest.mark.parametrize(("deaths", "is_excused"), [
    ([], False), ([(15.0, 15.1)], True), ([(20.0, 20.1)], True), ([(21.0, 21.1)], False), ([(9.0, 9.5)], False)])
def test_only_the_death_of_a_router_excuses_a_cut(deaths: list[tuple[float, float]], is_excused: bool) -> None:
    judge_cuts([record := make_record("cut")], deaths, [])
    assert bool(record.problems) != is_excused


@pytest.mark.parametrize(("status", "is_excused"), [(0, True), (200, False)])
def test_lack_of_descriptors_excuses_only_connections_without_an_answer(status: int, is_excused: bool) -> None:
    judge_cuts([record := make_record("cut", answer=Answer(status))], [], [(12.0, 13.0)])
    assert bool(record.problems) != is_excused


@pytest.mark.parametrize(("answer", "problem"), [
    (Answer(error="internal error", num_ends=1), "error: internal error"),
    (Answer(error="the processes died 3 times", num_ends=1), ""),
    (Answer(), "no terminal event")])
def test_unexpected_error_is_a_finding(answer: Answer, problem: str) -> None:
    record = make_record("", answer=answer)
    ChaosLoad("", {})._judge(record)
    assert record.problems == [problem] * bool(problem)


def test_plans_repeat_by_their_seed_and_leave_the_router_alone_in_the_second_half() -> None:
    plan = plan_faults(3, 600.0, 5.0)
    assert plan == plan_faults(3, 600.0, 5.0) != plan_faults(4, 600.0, 5.0)
    assert {fault.kind for fault in plan} == FAULT_KINDS.keys()
    assert not [fault for fault in plan if fault.at >= 300.0 and FAULT_KINDS[fault.kind].ends_router]
    assert draw_requests(Random(3), 50) == draw_requests(Random(3), 50)


def test_recovery_is_counted_by_probes_sent_after_the_fault() -> None:
    record = FaultRecord(Fault(0, 0.0, "kill shard", 0.0, 0), began_at=10.0)
    set_recovery_times([record], [(9.9, 10.1), (10.2, 13.0), (10.4, 12.5)])
    assert record.recovered_after == 2.5


def test_recovery_during_another_outage_is_left_out() -> None:
    def record(kind: str, began_at: float, recovered_after: float) -> FaultRecord:
        return FaultRecord(Fault(0, 0.0, kind, 0.0, 0), began_at, recovered_after=recovered_after)
    faults = [record("kill shard", 10.0, 5.0), record("full disk", 12.0, 3.0), record("full disk", 20.0, 0.5)]
    assert summarize_faults(faults) == {"kill shard": {"count": 1, "alone": 1, "median": 5.0, "worst": 5.0},
                                        "full disk": {"count": 2, "alone": 1, "median": 0.5, "worst": 0.5}}


def make_samples(*rss_mebibytes: float) -> list[Sample]:
    return [Sample(10.0 * number, ProcessUse(1, int(size * MEBIBYTE), 20, 4))
            for number, size in enumerate(rss_mebibytes)]


def test_growing_memory_is_a_finding() -> None:
    flat, growing = make_samples(*[100.0] * 12), make_samples(*[100.0 + 5.0 * number for number in range(12)])
    assert judge_memory(summarize_memory({"router": flat}), is_soak=True) == []
    assert judge_memory(summarize_memory({"router": growing}), is_soak=False) == [
        "memory of the router grew from 120.0 to 155.0 MiB"]
    assert compute_slope([(sample.at, sample.use.rss_bytes / MEBIBYTE) for sample in growing]) == pytest.approx(1800.0)


def test_descriptors_that_stay_open_are_a_finding() -> None:
    assert judge_descriptors({"router": 30}, {"router": 35}) == []
    assert judge_descriptors({"router": 30}, {"router": 60}) == ["the router has 60 descriptors, and had 30"]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_short_run_with_every_dialect_has_no_findings(tmp_path: Path) -> None:
    assert main(["chaos", "--seconds", "24", "--interval", "3", "--clients", "4", "--num-shard", "2", "--seed",
                 f"{int(time.time())}", "--output", f"{tmp_path / 'report.json'}", "--folder", f"{tmp_path}"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["runs"][0]["findings"] == []
