"""Endpoint picker that knows replicas only by the gauges on their pages of metrics, as the one of the Gateway API
inference extension does.

A replica scores 0 to 1 each for a short queue among its peers, room in its cache, and the request's adapter: 1 if the
adapter is on its shards, 0.8 if there is a place for it, 0.6 if it is being loaded, else 0. The greatest sum is picked.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

GATEWAY_GAUGES = {"vllm:num_requests_waiting": set[str](), "vllm:num_requests_running": set[str](),
                  "vllm:kv_cache_usage_perc": set[str](),
                  "vllm:cache_config_info": {"block_size", "num_gpu_blocks"},
                  "vllm:lora_requests_info": {"max_lora", "running_lora_adapters", "waiting_lora_adapters"}}


@dataclass(frozen=True, slots=True)
class ReplicaGauges:
    """What a picker reads from one page of metrics."""

    num_waiting: float
    num_running: float
    cache_usage: float
    block_size: int
    num_blocks: int
    max_adapters: int
    running_adapters: frozenset[str]
    waiting_adapters: frozenset[str]
    adapters_updated_at: float  # Unix time

    @classmethod
    def from_page(cls, page: str) -> Self:
        """Raises ValueError for a page that breaks the protocol."""
        samples = {}
        wanted_lines = [line for line in page.splitlines() if "vllm:" in line]
        for family in text_string_to_metric_families("\n".join(wanted_lines)):
            if family.name in GATEWAY_GAUGES:
                if family.type != "gauge" or len(family.samples) != 1:
                    raise ValueError(f"{family.name} is a {family.type} with {len(family.samples)} series")
                [samples[family.name]] = family.samples
        if samples.keys() != GATEWAY_GAUGES.keys():
            raise ValueError(f"there is no {', '.join(GATEWAY_GAUGES.keys() - samples.keys())}")
        for name, labels in GATEWAY_GAUGES.items():
            if set(samples[name].labels) != labels:
                raise ValueError(f"{name} has the labels {sorted(samples[name].labels)}")
        cache, adapters = samples["vllm:cache_config_info"].labels, samples["vllm:lora_requests_info"]
        return cls(samples["vllm:num_requests_waiting"].value, samples["vllm:num_requests_running"].value,
                   samples["vllm:kv_cache_usage_perc"].value, int(cache["block_size"]), int(cache["num_gpu_blocks"]),
                   int(adapters.labels["max_lora"]), split_names(adapters.labels["running_lora_adapters"]),
                   split_names(adapters.labels["waiting_lora_adapters"]), adapters.value)

    def score_adapter(self, model: str) -> float:
        if model in self.running_adapters:
            return 1.0
        if len(self.running_adapters) + len(self.waiting_adapters) < self.max_adapters:
            return 0.8
        return 0.6 if model in self.waiting_adapters else 0.0


def split_names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def pick_replica(replicas: Sequence[ReplicaGauges], model: str, random: random.Random) -> int:
    """Return the index of the replica for a request with this `model`; equals are drawn from."""
    queues = [replica.num_waiting for replica in replicas]
    spread = max(queues) - min(queues)
    scores = [(1.0 if not spread else (max(queues) - replica.num_waiting) / spread) + (1.0 - replica.cache_usage)
              + replica.score_adapter(model) for replica in replicas]
    return random.choice([index for index, score in enumerate(scores) if score == max(scores)])
