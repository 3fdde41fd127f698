"""Fields of a request that recordings keep."""

from dataclasses import fields

from router.recording.redact import (
    KEPT_FIELDS,
    OMITTED_FIELDS,
    PLACEHOLDER_END_TOKEN,
    rebuild_request,
    redact_request,
    redacted_request_to_json,
    request_from_json,
)
from router.request import LoadableResource, Request, RequestKind, Tenant

FULL_REQUEST = Request("a", (7, 8, 9), 5, sampling_key=3, end_tokens=frozenset({4}), stop_strings=("stop",), priority=1,
                       tenant=Tenant("t", 2.0, 1, 2, 3), timeout=1.5, cache_namespace=b"n", block_hashes=(b"x", b"y"),
                       adapter=LoadableResource("adapter", 1), prompt_logprobs=True)


def test_every_request_field_is_kept_or_left_out_on_purpose():
    assert {item.name for item in fields(Request)} == OMITTED_FIELDS | set(KEPT_FIELDS)


def test_redacted_request_keeps_lengths_but_no_content():
    again = rebuild_request(redact_request(FULL_REQUEST))
    assert (again.prompt, again.end_tokens, again.stop_strings,
            again.sampling_key) == ((0, 0, 0), {PLACEHOLDER_END_TOKEN}, (), 0)
    assert redact_request(again) == redact_request(FULL_REQUEST)


def test_redacted_request_survives_json():
    assert (request_from_json(redacted_request_to_json(redact_request(FULL_REQUEST)))
            == rebuild_request(redact_request(FULL_REQUEST)))


def test_request_without_adapter_and_tenant_survives_json():
    plain = Request("a", (7,), 5)
    assert request_from_json(redacted_request_to_json(redact_request(plain))) == rebuild_request(redact_request(plain))


def test_request_kind_is_recorded_by_its_name():
    values = redacted_request_to_json(redact_request(Request("a", (7,), 0, kind=RequestKind.CLASSIFY)))
    assert values["kind"] == "labels"
    assert request_from_json(values).kind is RequestKind.CLASSIFY
