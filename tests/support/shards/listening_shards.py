"""Simulated shards that listen in this process, with no router. Their steps take no time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from shard.config import ShardConfig, SimulatedConfig
from shard.rpc.server import HealthService, serve_grpc
from shard.rpc.service import ShardService
from shard.simulator.worker import SimulatedWorker


@asynccontextmanager
async def run_simulated_shards(folder: Path, world_size: int = 1,
                               **simulated_settings: Any) -> AsyncIterator[list[str]]:
    """Start one shard per rank and yield the addresses by rank."""
    configs = [ShardConfig(f"unix:{folder}/shard-{rank}.sock", rank, world_size,
                           simulated=SimulatedConfig(**simulated_settings)) for rank in range(world_size)]
    async with AsyncExitStack() as stack:
        for config in configs:
            service = ShardService(SimulatedWorker(config, sleep=lambda _: None), config.gap_timeout)
            await stack.enter_async_context(serve_grpc(config.socket, service, HealthService(60.0, lambda: None)))
        yield [config.socket for config in configs]
