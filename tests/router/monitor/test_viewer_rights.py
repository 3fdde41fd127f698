"""What a viewer sees of its own sequences and of those of others."""

from router.monitor.observed_steps import ObservedSequence
from router.monitor.viewer_rights import AnonymousNumbers, SequenceRedactor, Viewer
from router.request import ADAPTER, LoadableResource, Request, Tenant


def observe(number, tenant, adapter_name="", adapter=None):
    return ObservedSequence.from_request(number, Request(f"request-{number}", (1, 2), 9, tenant=Tenant(tenant),
                                                         adapter=adapter, adapter_name=adapter_name), 5.0)


PIRATE = LoadableResource(ADAPTER, 7)
OWN, FOREIGN = observe(1, "a", "pirate", PIRATE), observe(2, "b", "pirate", PIRATE)


def test_own_sequence_is_named():
    described = SequenceRedactor(100.0).describe(OWN, Viewer("a", is_admin=False))
    assert described == {"id": 1, "own": True, "request_id": "request-1", "kind": "text", "tenant": "a",
                         "tenant_ordinal": 1, "adapter": "pirate", "adapter_ordinal": 1, "submitted_at": 105.0,
                         "prompt_tokens": 2, "max_new_tokens": 9}


def test_sequence_of_another_tenant_is_anonymous():
    renderer = SequenceRedactor(0.0)
    described = renderer.describe(FOREIGN, Viewer("a", is_admin=False))
    assert not {"request-2", "b"} & {*described.values()}
    assert (described["own"], described["request_id"], described["tenant"]) == (False, None, None)
    assert (described["tenant_ordinal"], described["adapter_ordinal"]) == (1, 1)
    assert renderer.describe(OWN, Viewer("a", is_admin=False))["tenant_ordinal"] == 2


def test_adapters_are_named_unless_they_are_private():
    """As by `GET /v1/adapters`. Requests for private ones have no name."""
    renderer, viewer = SequenceRedactor(0.0), Viewer("a", is_admin=False)
    named = [renderer.describe(sequence, viewer) for sequence in (
        OWN, FOREIGN, observe(3, "b", "", LoadableResource(ADAPTER, 8)))]
    assert [(entry["adapter"], entry["adapter_ordinal"]) for entry in named] == [
        ("pirate", 1), ("pirate", 1), (None, 2)]


def test_admin_sees_names_but_no_ids_of_requests():
    described = SequenceRedactor(0.0).describe(FOREIGN, Viewer("a", is_admin=True))
    assert (described["adapter"], described["tenant"], described["request_id"]) == ("pirate", "b", None)


def test_text_is_for_its_owner_and_admins_and_only_if_it_is_switched_on():
    assert not Viewer("a", is_admin=True).may_read_text(OWN)
    owner, admin = Viewer("a", False, shows_text=True), Viewer("c", True, shows_text=True)
    assert [viewer.may_read_text(sequence) for viewer in (owner, admin) for sequence in (OWN, FOREIGN)] == [
        True, False, True, True]


def test_sequence_of_which_only_rows_are_known_belongs_to_nobody():
    unknown = ObservedSequence.unknown(3, 1.0)
    assert not Viewer("", is_admin=False).owns(unknown)
    assert SequenceRedactor(0.0).describe_all([unknown], Viewer("", is_admin=True))[0]["tenant_ordinal"] == 0


def test_ordinals_count_from_one_and_stay():
    ordinals = AnonymousNumbers()
    assert [ordinals.get(key) for key in ("x", None, "y", "x")] == [1, 0, 2, 1]
