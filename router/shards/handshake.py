"""Handshake with the shards at the beginning of an epoch: warm-up if needed, reset, and what the ranks hold."""

from dataclasses import dataclass
from functools import reduce

from router.config import RouterConfig
from router.request import Resource
from router.scheduler.fault_isolation import Loss
from router.scheduler.plan import ModelFacts
from router.shards import encode
from router.shards.failures import ShardsLost
from router.shards.shard_group import Shards

CALL_TIMEOUT = 10.0  # seconds, for calls without a forward pass
WARMUP_TIMEOUT = 3600.0  # seconds; a large model without a GPU takes many minutes, and after this one counts as hung


@dataclass(frozen=True, slots=True)
class Meeting:
    facts: ModelFacts
    epoch: int
    loaded: frozenset[Resource]  # on every rank
    leftovers: frozenset[Resource]  # on at least one rank


async def meet(shards: Shards, config: RouterConfig, last_epoch: int) -> Meeting:
    """Connect and begin an epoch, with a number above `last_epoch` and all epochs of the shards. Raises ShardsLost."""
    await shards.connect()
    infos = await shards.info(CALL_TIMEOUT)
    if not all(info.HasField("warmup") for info in infos):
        most = config.max_total_tokens or min(info.max_positions for info in infos)
        await shards.warmup(encode.warmup_request(config, most), WARMUP_TIMEOUT)
        infos = await shards.info(CALL_TIMEOUT)
    epoch = max(last_epoch, *(info.epoch for info in infos)) + 1
    await shards.reset(epoch, CALL_TIMEOUT)
    loaded = [encode.loaded(info) for info in infos]
    try:
        facts = encode.facts(infos)
    except encode.Defect as defect:
        raise ShardsLost(Loss.DEFECT, str(defect)) from None
    return Meeting(facts, epoch, reduce(frozenset.intersection, loaded), reduce(frozenset.union, loaded))
