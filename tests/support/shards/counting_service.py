"""The shard's service with a count of its calls by verb, whether they came alone or on a stream."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from shard.pb import shard_pb2 as pb
from shard.rpc.service import ReceivedStepMessage, ShardService

UNARY_VERBS = ("Info", "Warmup", "Reset", "Prefill", "Decode", "Filter", "Concat", "Embed", "Load", "Unload")


class CountingShardService(ShardService):
    """Service that counts its calls; `num_calls` may be replaced by another counter."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.num_calls: Counter[str] = Counter()

    def _receive_message(self, message: pb.StepMessage) -> ReceivedStepMessage:
        self.num_calls[(message.WhichOneof("verb") or "none").capitalize()] += 1
        return super()._receive_message(message)


def make_counting_method(verb: str) -> Callable[[CountingShardService, Any, Any], Awaitable[Any]]:
    method = getattr(ShardService, verb)

    async def count_and_call(service: CountingShardService, request: Any, context: Any) -> Any:
        service.num_calls[verb] += 1
        return await method(service, request, context)

    return count_and_call


for name in UNARY_VERBS:
    setattr(CountingShardService, name, make_counting_method(name))
