"""Verbs, compared with the gRPC contract."""

from router.shards.rpc_methods import ANSWER_TYPES, METHOD_BY_REQUEST_TYPE, STEP_FIELD_BY_METHOD
from shard.pb import shard_pb2 as pb


def test_every_rpc_of_the_contract_is_known():
    """`Steps` is left out: it only carries the messages of five other methods."""
    methods = {method.name: method for method in pb.DESCRIPTOR.services_by_name["Shard"].methods if
               method.name != "Steps"}
    assert {kind.DESCRIPTOR.full_name: name for kind, name in METHOD_BY_REQUEST_TYPE.items()} == {
        method.input_type.full_name: name for name, method in methods.items()}
    assert {name: kind.DESCRIPTOR.full_name for name, kind in ANSWER_TYPES.items()} == {
        name: method.output_type.full_name for name, method in methods.items()}


def test_every_field_of_a_step_message_carries_the_request_of_its_verb():
    assert {STEP_FIELD_BY_METHOD[name]: kind.DESCRIPTOR.full_name for kind, name in METHOD_BY_REQUEST_TYPE.items()
            if name in STEP_FIELD_BY_METHOD} == {
        field.name: field.message_type.full_name for field in pb.StepMessage.DESCRIPTOR.fields}
