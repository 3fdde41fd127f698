"""Records of requests, and how long they are kept."""

import pytest

from router.request import DEFAULT_TENANT, Tenant
from router.scheduler.sequence import RequestPhase, RequestTimeline
from router.telemetry.server_metrics import MAX_REFUSED_RECORDS, RequestRecord, RequestRecordStore


def make_record(request_id="mine", tenant=""):
    return RequestRecord(request_id, tenant, 3, 0.0, RequestTimeline(1.0))


@pytest.mark.parametrize(("cause", "state"), [(RequestPhase.QUEUE, "waiting"), (RequestPhase.PREFILL, "running"),
                                              (RequestPhase.DECODE, "running"), (RequestPhase.SLOW_CLIENT, "waiting")])
def test_record_state_follows_from_the_timeline(cause, state):
    record = make_record()
    record.timeline.enter_phase(cause, 2.0)
    assert record.state == state
    record.timeline.end(3.0)
    assert record.state == "over"


def test_record_is_kept_while_the_request_is_unfinished_and_after():
    request_records, record = RequestRecordStore(), make_record()
    request_records.add_unfinished(record)
    assert request_records.get("mine") is record
    request_records.move_to_finished(record, 5.0)
    assert (request_records.get("mine"), record.timeline.ended_at) == (record, 5.0)
    assert request_records.get("other") is None


def test_end_time_given_by_the_scheduler_is_kept():
    request_records, record = RequestRecordStore(), make_record()
    request_records.add_unfinished(record)
    record.timeline.end(2.0)
    request_records.move_to_finished(record, 5.0)
    assert record.timeline.ended_at == 2.0


def test_oldest_finished_records_are_dropped_and_unfinished_ones_kept():
    request_records = RequestRecordStore(max_finished=2)
    request_records.add_unfinished(make_record("served"))
    for name in ("a", "b", "c"):
        request_records.add_unfinished(record := make_record(name))
        request_records.move_to_finished(record, 5.0)
    assert [request_records.get(name) is not None for name in ("served", "a", "b", "c")] == [True, False, True, True]


def test_unused_request_id_can_be_used():
    assert RequestRecordStore().can_use_request_id("mine", DEFAULT_TENANT)


def test_request_id_is_taken_while_unfinished_and_then_free_for_its_tenant():
    request_records, record = RequestRecordStore(), make_record(tenant="a")
    request_records.add_unfinished(record)
    assert not request_records.can_use_request_id("mine", Tenant("a"))
    request_records.move_to_finished(record, 5.0)
    assert request_records.can_use_request_id("mine", Tenant("a"))
    assert not request_records.can_use_request_id("mine", Tenant("b"))


def test_later_of_two_requests_with_one_id_is_returned():
    request_records, first, second = RequestRecordStore(), make_record(), make_record()
    request_records.add_unfinished(first)
    request_records.add_unfinished(second)
    request_records.move_to_finished(first, 5.0)
    assert request_records.get("mine") is second
    request_records.move_to_finished(second, 6.0)
    assert request_records.get("mine") is second
    request_records.add_unfinished(third := make_record())
    assert request_records.get("mine") is third


def test_refused_requests_are_listed_by_their_end_and_take_no_id():
    request_records = RequestRecordStore()
    request_records.add_unfinished(running := make_record("running", "a"))
    for name, ended_at in (("first", 2.0), ("last", 4.0)):
        request_records.add_unfinished(record := make_record(name, "a"))
        request_records.move_to_finished(record, ended_at)
    for tenant, ended_at in (("a", 3.0), ("b", 5.0)):
        request_records.add_refused(RequestRecord.of_refused("refused", tenant, 1.0, ended_at, "validation"))
    assert [record.id for record in request_records.find_latest("a", 10)] == ["running", "last", "refused", "first"]
    assert request_records.get("refused").tenant_name == "b"
    assert request_records.can_use_request_id("refused", Tenant("a"))
    request_records.add_unfinished(again := make_record("refused", "a"))
    assert request_records.get("refused") is again
    assert running.error_type is None


def test_oldest_refused_records_are_dropped():
    request_records = RequestRecordStore()
    for number in range(MAX_REFUSED_RECORDS + 1):
        request_records.add_refused(RequestRecord.of_refused(str(number), "", 1.0, 2.0 + number, "overloaded"))
    assert request_records.get("0") is None
    assert len(request_records.find_latest("", 1000)) == MAX_REFUSED_RECORDS


def test_prompts_and_choices_of_a_request_are_found_but_no_others():
    request_records = RequestRecordStore()
    for name in ("mine", "mine-2", "mine.1", "mine.1-2"):
        request_records.add_unfinished(make_record(name))
    request_records.move_to_finished(request_records.get("mine.1"), 5.0)
    later = RequestRecord("mine-3", "", 3, 2.0, RequestTimeline(3.0))  # another request
    request_records.add_unfinished(later)
    records_by_prompt = request_records.find_records_by_prompt(request_records.get("mine"))
    assert [[record.id for record in choices] for choices in records_by_prompt] == [
        ["mine", "mine-2"], ["mine.1", "mine.1-2"]]
    assert request_records.find_records_by_prompt(later) == [[later]]
