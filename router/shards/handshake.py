"""Handshake with the shards at the beginning of an epoch: warm-up if needed, reset, and what the ranks hold."""

from dataclasses import dataclass
from functools import reduce

from router.config import RouterConfig
from router.model_info import ModelInfo
from router.request import LoadableResource
from router.shards.answer_decoding import combine_rank_infos, loaded_resources
from router.shards.request_encoding import make_warmup_request
from router.shards.shard_group import ShardGroup
from shard.pb import shard_pb2 as pb

CALL_TIMEOUT_SECONDS = 10.0  # for calls without a forward pass
# A large model without a GPU takes many minutes; after this one it counts as hung.
WARMUP_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """The model, the new epoch, and the resources that the ranks have loaded."""

    model_info: ModelInfo
    epoch: int
    loaded_on_all_ranks: frozenset[LoadableResource]
    loaded_on_any_rank: frozenset[LoadableResource]


async def perform_handshake(shards: ShardGroup, config: RouterConfig, last_epoch: int) -> HandshakeResult:
    """Connect and begin an epoch, with a number above `last_epoch` and all epochs of the shards. Raises ShardsLost."""
    await shards.connect()
    infos = await shards.call(pb.InfoRequest(), CALL_TIMEOUT_SECONDS)
    if not all(info.HasField("warmup") for info in infos):
        max_total_tokens = config.max_total_tokens or min(info.max_positions for info in infos)
        await shards.call(make_warmup_request(config, max_total_tokens), WARMUP_TIMEOUT_SECONDS)
        infos = await shards.call(pb.InfoRequest(), CALL_TIMEOUT_SECONDS)
    epoch = max(last_epoch, *(info.epoch for info in infos)) + 1
    await shards.call(pb.ResetRequest(epoch=epoch), CALL_TIMEOUT_SECONDS)
    model_info, loaded = combine_rank_infos(infos), [loaded_resources(info) for info in infos]
    return HandshakeResult(model_info, epoch, reduce(frozenset.intersection, loaded), reduce(frozenset.union, loaded))
