"""Plan of a group of hosts: the place of this one, its shards, and the credentials of all."""

import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.hosts.node_rank import NodeRank, read_node_rank
from launcher.settings import LaunchConfig
from launcher.supervisor.launch_plan import HostPlacement, address_file
from launcher.supervisor.supervisor import ConfigurationError, LaunchError
from shard.tls_credentials import CREDENTIALS_FLAG, ShardTlsCredentials, format_address, load_credentials

RESOLVE_ATTEMPTS, RESOLVE_PAUSE_SECONDS = 10, 1.0  # for node 0's address


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A group of hosts, as this one sees it."""

    node: NodeRank
    credentials: ShardTlsCredentials
    num_shard: int  # of all hosts
    master_host: str  # the number of the first host's address; "" on others, which ask for it whenever they join
    run_name: str  # of this run of the first host's launcher

    @property
    def num_local_shards(self) -> int:
        return self.node.count_local_shards(self.num_shard)

    @property
    def placement(self) -> HostPlacement:
        node, count = self.node, self.num_local_shards
        return HostPlacement(
            self.list_ranks(node.node_rank), first_local_rank=node.machine_rank * count,
            local_world_size=node.machine_size * count, credentials=self.credentials.folder,
            meeting_prefix=f"{format_address(self.master_host, node.master_port)}/{self.run_name}-",
            host_address=self.master_host)

    def list_ranks(self, node_rank: int) -> range:
        return range(node_rank * self.num_local_shards, (node_rank + 1) * self.num_local_shards)

    def list_address_files(self, runtime_folder: str, node_rank: int) -> Sequence[Path]:
        """Return the files for the addresses of another node's shards."""
        return [Path(address_file(runtime_folder, rank)) for rank in self.list_ranks(node_rank)]

    def describe(self) -> str:
        node, ranks = self.node, self.list_ranks(self.node.node_rank)
        shards = f"shard {ranks.start}" if len(ranks) == 1 else f"shards {ranks.start} to {ranks.stop - 1}"
        return f"node {node.node_rank} of {node.num_nodes} ({node.source}) has {shards} of {self.num_shard}"


def make_group_plan(launch: LaunchConfig, environment: Mapping[str, str]) -> GroupPlan | None:
    """Return the plan of the group that this host belongs to, or None if it serves alone. Raises ValueError or
    LaunchError."""
    node = read_node_rank(launch, environment)
    if node is None:
        return None
    if not launch.shard_credentials:
        raise ConfigurationError(f"{node.num_nodes} nodes ({node.source}) need {CREDENTIALS_FLAG}: shards are "
                                 "reached over a network only with TLS and a secret")
    num_shard = node.num_nodes if launch.num_shard == 1 else launch.num_shard
    node.count_local_shards(num_shard)
    return GroupPlan(node, load_credentials(launch.shard_credentials), num_shard,
                     resolve_host(node.master_address) if node.is_first else "", secrets.token_hex(8))


def resolve_host(address: str) -> str:
    """Return the number of an address, for which names may come up together with this host. Raises LaunchError."""
    for num_missing in reversed(range(RESOLVE_ATTEMPTS)):
        try:
            return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            reason = error.strerror
        if num_missing:
            time.sleep(RESOLVE_PAUSE_SECONDS)
    raise LaunchError(f"there is no address {address} (--dist-init-addr): {reason}")
