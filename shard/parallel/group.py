"""The group of ranks that share a model, on one machine or several hosts. Sums follow docs/concepts/exactness.md, "Sums
in rank order"; "Collectives of a step" there lists the calls in their order."""

import fcntl
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed import FileStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]  # not in its list

from shard.errors import PeerLost
from shard.parallel.rendezvous_client import RendezvousClient
from shard.parallel.shared_memory import SharedMemoryAllGather
from shard.tls_credentials import ShardTlsCredentials

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # a last resort: detecting a rank that hangs is left to others
LOOPBACK_ADDRESS = "127.0.0.1"
NCCL_INTERFACE_VARIABLE = "NCCL_SOCKET_IFNAME"  # of the interface on which NCCL listens
SIOCGIFADDR = 0x8915  # the system call for an interface's address

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Place where ranks of a group meet: a file that no other group may have used or, on several hosts, a
    `RendezvousClient`."""

    meeting_point: str
    host_address: str = ""  # of this host, for the ranks of others; empty: all ranks are on this machine
    credentials: ShardTlsCredentials | None = None

    @property
    def spans_hosts(self) -> bool:
        return bool(self.host_address)

    def open_store(self, world_size: int) -> Store:
        if self.credentials is not None:
            return RendezvousClient(self.meeting_point, self.credentials, COLLECTIVE_TIMEOUT)
        store = FileStore(self.meeting_point, world_size)
        store.set_timeout(COLLECTIVE_TIMEOUT)
        return store


class RankGroup(Protocol):
    """Group of ranks, which all make the same calls in the same order, with tensors of the same shapes. The methods do
    here what they do in a group of one rank."""

    rank: int
    size: int

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        """Return the ranks' partial results, added in rank order."""
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """Return the ranks' parts concatenated along the last axis on rank 0, None on the others."""
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Overwrite `x` with rank 0's values and return it."""
        return x

    def all_reduce_min(self, number: int) -> int:
        """Return the least of the ranks' numbers, once every rank has called."""
        return number


class SingleRankGroup(RankGroup):
    """Group of one rank."""

    rank, size = 0, 1


class SharedMemoryGroup:
    """Group over shared memory: each rank adds all parts by itself. GPU tensors are copied through host memory."""

    def __init__(self, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        self.rank, self.size = rank, world_size
        self._shared_memory = SharedMemoryAllGather(rank, world_size, rendezvous.meeting_point,
                                                    COLLECTIVE_TIMEOUT.total_seconds())

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        sums = map(sum_in_rank_order, self._shared_memory.iter_gathered_pieces(x.cpu()))
        return concatenate_pieces([*sums]).view(x.shape).to(x.device)

    def gather(self, x: Tensor) -> Tensor | None:
        num_parts = 0 if self.rank else self.size
        pieces = [[part.clone() for part in parts[:num_parts]]
                  for parts in self._shared_memory.iter_gathered_pieces(x.cpu())]
        if self.rank:
            return None
        return torch.cat([concatenate_pieces(part).view(x.shape) for part in zip(*pieces, strict=True)],
                         dim=-1).to(x.device)

    def broadcast(self, x: Tensor) -> Tensor:
        num_parts = 1 if self.rank else 0
        pieces = [part.clone() for parts in self._shared_memory.iter_gathered_pieces(x.cpu())
                  for part in parts[:num_parts]]
        return x.copy_(concatenate_pieces(pieces).view(x.shape)) if self.rank else x

    def all_reduce_min(self, number: int) -> int:
        [parts] = self._shared_memory.iter_gathered_pieces(torch.tensor([number]))
        return min(int(part) for part in parts)


class GlooGroup:
    """Group over gloo, which listens at the host's address: each rank adds all parts by itself, in the order in which a
    `SharedMemoryGroup` does. GPU tensors are copied through host memory."""

    def __init__(self, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        self.rank, self.size = rank, world_size
        self._store = store = rendezvous.open_store(world_size)  # gloo's reference does not keep its Python part
        if rendezvous.spans_hosts:
            check_same_backend(store, rank, world_size, "gloo")
        gloo: Any = ProcessGroupGloo  # whose stubs lack most of it
        options = gloo._Options()
        options._timeout = COLLECTIVE_TIMEOUT
        options._devices = [gloo.create_device(hostname=rendezvous.host_address or LOOPBACK_ADDRESS)]
        self._gloo = self._run_or_lose_peer(lambda: gloo(store, rank, world_size, options))

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        return sum_in_rank_order(self._all_gather(x)).to(x.device)

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._all_gather(x)
        return None if self.rank else torch.cat(parts, dim=-1).to(x.device)

    def broadcast(self, x: Tensor) -> Tensor:
        sent = x.detach().cpu().contiguous()
        self._run_or_lose_peer(lambda: self._gloo.broadcast(as_bytes(sent), 0).wait())
        return x.copy_(sent) if self.rank else x

    def all_reduce_min(self, number: int) -> int:
        return min(int(part) for part in self._all_gather(torch.tensor([number])))

    def _all_gather(self, x: Tensor) -> list[Tensor]:
        """Return the ranks' tensors, which all have one shape, in host memory."""
        own = x.detach().cpu().contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        self._run_or_lose_peer(lambda: self._gloo.allgather([[as_bytes(part) for part in parts]],
                                                            [as_bytes(own)]).wait())
        return parts

    def _run_or_lose_peer(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except PeerLost:
            raise
        except RuntimeError as error:
            raise PeerLost(f"a peer of rank {self.rank} is gone: {str(error).partition(chr(10))[0]}") from error


class NcclGroup:
    """Group over NCCL: one GPU per rank, the current one of the process, which can have only one such group."""

    def __init__(self, rank: int, world_size: int, rendezvous: Rendezvous) -> None:
        self.rank, self.size = rank, world_size
        self._store = store = rendezvous.open_store(world_size)  # as in GlooGroup
        if rendezvous.spans_hosts:
            check_same_backend(store, rank, world_size, "nccl")
            if not os.environ.get(NCCL_INTERFACE_VARIABLE):  # NCCL would listen on any interface, maybe a public one
                os.environ[NCCL_INTERFACE_VARIABLE] = f"={find_network_interface(rendezvous.host_address)}"
        device = torch.device("cuda", torch.cuda.current_device())
        distributed.init_process_group(
            "nccl", store=store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT, device_id=device)

    def all_reduce_sum(self, x: Tensor) -> Tensor:
        if self.size > 2:
            return sum_in_rank_order(self._all_gather(x))
        total = x.clone()
        distributed.all_reduce(total)
        return total

    def gather(self, x: Tensor) -> Tensor | None:
        parts = self._all_gather(x)
        return None if self.rank else torch.cat(parts, dim=-1)

    def broadcast(self, x: Tensor) -> Tensor:
        distributed.broadcast(x, 0)
        return x

    def all_reduce_min(self, number: int) -> int:
        least = torch.tensor([number], device="cuda")
        distributed.all_reduce(least, distributed.ReduceOp.MIN)
        return int(least)

    def _all_gather(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        distributed.all_gather(parts, x.contiguous())
        return parts


GROUP_BACKENDS: dict[str, Callable[[int, int, Rendezvous], RankGroup]] = {
    "memory": SharedMemoryGroup, "gloo": GlooGroup, "nccl": NcclGroup}


def join_group(rank: int, world_size: int, backend: str, rendezvous: Rendezvous) -> RankGroup:
    """Join the group and return when all ranks have."""
    return SingleRankGroup() if world_size == 1 else GROUP_BACKENDS[backend](rank, world_size, rendezvous)


def choose_dist_backend(requested: str, device: str, num_local_ranks: int, num_gpus: int, *,
                        spans_hosts: bool = False) -> str:
    """Return the key in GROUP_BACKENDS; `device` is cpu or cuda, `num_gpus` the number of GPUs of this machine, on
    which `num_local_ranks` of the ranks run."""
    can_use_nccl = device == "cuda" and num_gpus >= num_local_ranks
    between_machines = "gloo" if spans_hosts else "memory"
    if requested == "nccl" and not can_use_nccl:
        raise ValueError(
            f"--dist-backend nccl needs a GPU for every shard, there are {num_gpus} for {num_local_ranks} shards on "
            f"--device {device}; use --dist-backend {between_machines}")
    if requested == "memory" and spans_hosts:
        raise ValueError("--dist-backend memory is for shards on one machine; on several hosts use gloo or nccl")
    if requested != "auto":
        return requested
    return "nccl" if can_use_nccl else between_machines


def check_same_backend(store: Store, rank: int, world_size: int, backend: str) -> None:
    """Raise ValueError if a rank on another host exchanges data in another way, for which both would wait for ever."""
    store.set(f"backend/{rank}", backend)
    for other in range(world_size):
        if (others := store.get(f"backend/{other}").decode()) != backend:
            raise ValueError(f"rank {rank} uses {backend} and rank {other} {others}; give all hosts the same "
                             "--dist-backend and --device, and a GPU for every shard or for none")


def find_network_interface(address: str) -> str:
    """Return the name of the network interface whose first IPv4 address this is. Raises ValueError if none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                answer = fcntl.ioctl(any_socket, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    raise ValueError(f"no network interface has {address} as its first IPv4 address; set {NCCL_INTERFACE_VARIABLE} to "
                     "the interface on which NCCL is to listen")


def as_bytes(x: Tensor) -> Any:
    """Return the contiguous tensor's memory as a tensor of bytes: gloo copies them as they are."""
    return x.view(-1).view(torch.uint8)


def sum_in_rank_order(parts: list[Tensor]) -> Tensor:
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def concatenate_pieces(pieces: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def even_rank_range(num_items: int, rank: int, world_size: int) -> range:
    """Return a rank's part of `num_items` items that must be shared evenly."""
    if num_items % world_size:
        raise ValueError(
            f"{num_items} cannot be shared evenly by {world_size} shards; choose a --num-shard that divides it")
    return range(num_items // world_size * rank, num_items // world_size * (rank + 1))


def uneven_rank_range(num_items: int, rank: int, world_size: int) -> range:
    """Return a rank's part of `num_items` items that need not be shared evenly."""
    return range(num_items * rank // world_size, num_items * (rank + 1) // world_size)


def padded_rank_range(num_items: int, rank: int, world_size: int) -> range:
    """Return a rank's part of `num_items` items. All parts have one length; the last ones may be partly or wholly past
    the end."""
    width = -(-num_items // world_size)
    return range(width * rank, width * (rank + 1))


def replicated_rank_range(num_items: int, rank: int, world_size: int) -> range:
    """Return a rank's part of `num_items` items. If there are fewer items than ranks, neighbours hold copies of one."""
    if num_items >= world_size:
        return even_rank_range(num_items, rank, world_size)
    if world_size % num_items:
        raise ValueError(
            f"{num_items} cannot be copied evenly to {world_size} shards; choose a --num-shard that it divides")
    return range(rank * num_items // world_size, rank * num_items // world_size + 1)
