"""Fields of a request that recordings keep."""

from dataclasses import fields

from router.recording.redact import END, KEPT, LEFT_OUT, bare, heard, request_of, told
from router.request import Request, Resource, Tenant, Wish

FULL = Request("a", (7, 8, 9), 5, key=3, end_tokens=frozenset({4}), stop_strings=("stop",), priority=1,
               tenant=Tenant("t", 2.0, 1, 2, 3), timeout=1.5, namespace=b"n", block_hashes=(b"x", b"y"),
               adapter=Resource("adapter", 1), prompt_logprobs=True)


def test_every_field_of_a_request_is_kept_or_left_out_on_purpose():
    assert {item.name for item in fields(Request)} == LEFT_OUT | set(KEPT)


def test_a_bare_request_says_how_long_and_not_what():
    again = request_of(*bare(FULL))
    assert (again.prompt, again.end_tokens, again.stop_strings, again.key) == ((0, 0, 0), {END}, (), 0)
    assert bare(again) == bare(FULL)


def test_what_is_told_is_heard():
    assert heard(told(bare(FULL))) == request_of(*bare(FULL))


def test_a_request_without_adapter_and_tenant_is_told_as_well():
    plain = Request("a", (7,), 5)
    assert heard(told(bare(plain))) == request_of(*bare(plain))


def test_a_request_from_before_there_were_wishes_wants_text():
    values = told(bare(Request("a", (7,), 5)))
    del values["wish"]
    assert heard(values).wish is Wish.TEXT


def test_a_wish_is_told_by_its_name_and_heard():
    values = told(bare(Request("a", (7,), 0, wish=Wish.LABELS)))
    assert values["wish"] == "labels"
    assert heard(values).wish is Wish.LABELS
