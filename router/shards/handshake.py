"""Handshake with the shards at the beginning of an epoch: warm-up if needed, reset, and what the ranks hold."""

from dataclasses import dataclass
from functools import reduce

from router.config import RouterConfig
from router.model_info import ModelInfo, StepMeasurement
from router.request import ADAPTER, GRAMMAR, LoadableResource
from router.scheduler.fault_isolation import ShardLossReason
from router.shards.failures import ShardsLost
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


def make_warmup_request(config: RouterConfig, max_total_tokens: int) -> pb.WarmupRequest:
    return pb.WarmupRequest(
        block_size=config.block_size, max_prefill_tokens=config.max_batch_prefill_tokens,
        max_batch_size=config.max_batch_size, max_total_tokens=max_total_tokens,
        max_cache_tokens=config.max_batch_total_tokens or 0)


def combine_rank_infos(infos: list[pb.InfoAnswer]) -> ModelInfo:
    """Return the ranks' descriptions of themselves as one; the smallest cache counts. Raises ShardsLost if they serve
    different models."""
    first = infos[0]
    for info in infos[1:]:
        if (info.model, info.vocabulary_size, info.max_positions) != (first.model, first.vocabulary_size,
                                                                      first.max_positions):
            raise ShardsLost(ShardLossReason.DEFECT, f"rank {info.rank} serves another model than rank {first.rank}")
    warmup = first.warmup
    return ModelInfo(
        model=first.model, device=first.device, dtype=first.dtype, vocabulary_size=first.vocabulary_size,
        max_positions=first.max_positions, block_size=warmup.block_size,
        num_blocks=min(info.warmup.num_blocks for info in infos), tokens_per_step=max(1, first.tokens_per_step),
        mixed_steps=first.mixed_steps, world_size=first.world_size, exact=all(info.exact for info in infos),
        measurements=tuple(StepMeasurement(*row) for row in zip(
            warmup.rows, warmup.chunk_tokens, warmup.context, warmup.seconds, strict=True)),
        cache_bytes=sum(info.warmup.cache_bytes for info in infos), cache_size_note=warmup.why,
        grammars=all(info.grammars for info in infos), adapters=all(info.adapters for info in infos),
        adapter_bytes=min(info.warmup.adapter_bytes for info in infos), generation=first.generation,
        embeddings=first.embeddings, classification=first.classification, labels=tuple(first.labels),
        quantization=first.quantization)


def loaded_resources(info: pb.InfoAnswer) -> frozenset[LoadableResource]:
    ids_by_kind = {ADAPTER: info.loaded_adapters, GRAMMAR: info.loaded_grammars}
    return frozenset(LoadableResource(kind, resource_id) for kind, ids in ids_by_kind.items() for resource_id in ids)
