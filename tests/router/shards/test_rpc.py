"""Verbs, compared with the gRPC contract."""

from router.shards.rpc import ANSWERS, METHODS
from shard.pb import shard_pb2 as pb


def test_every_method_of_the_contract_is_known():
    """`Steps` is left out: it only carries the messages of five other methods."""
    methods = {method.name: method for method in pb.DESCRIPTOR.services_by_name["Shard"].methods if
               method.name != "Steps"}
    assert {kind.DESCRIPTOR.full_name: name for kind, name in METHODS.items()} == {
        method.input_type.full_name: name for name, method in methods.items()}
    assert {name: kind.DESCRIPTOR.full_name for name, kind in ANSWERS.items()} == {
        name: method.output_type.full_name for name, method in methods.items()}
