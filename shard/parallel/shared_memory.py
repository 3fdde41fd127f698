"""All-gather over shared memory, for ranks that are processes of one machine. Unix sockets signal that a piece is
ready, and its length."""

import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from tempfile import TemporaryFile

import torch
from torch import Tensor

from shard.errors import PeerLost

PIECE_BYTES = 2**20  # bytes that a rank writes at once
CONNECT_RETRY_SECONDS = 0.005  # seconds between attempts to connect to a rank that does not listen yet
SIGNAL_BYTES = 4  # bytes of a signal, which is the length of a piece


class SharedMemoryAllGather:
    """All-gather of tensors over memory that every rank has mapped."""

    def __init__(self, rank: int, world_size: int, meeting_point: str, timeout_seconds: float) -> None:
        """Connect to all other ranks; return when all are connected. They meet at sockets whose names begin with
        `meeting_point`, which are removed then. `timeout_seconds` is for every single wait."""
        self._rank = rank
        self._buffer_index = 0
        self._peer_sockets: list[socket.socket] = []
        self._rank_buffers: list[Tensor] = [torch.empty(0)] * world_size
        own_descriptor = create_anonymous_file(2 * PIECE_BYTES)
        try:
            self._rank_buffers[rank] = map_descriptor(own_descriptor)
            self._connect_peers(own_descriptor, meeting_point, timeout_seconds)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(own_descriptor)

    def iter_gathered_pieces(self, x: Tensor) -> Iterator[list[Tensor]]:
        """Yield the tensors of all ranks, by rank, flat and piece by piece. All have one shape. A piece is valid until
        the next but one is requested: no rank gets a piece before all have written theirs, so none is two pieces
        behind."""
        flat, piece_length = x.contiguous().view(-1), PIECE_BYTES // x.itemsize
        for start in range(0, max(1, len(flat)), piece_length):
            piece, begin = flat[start:start + piece_length], self._buffer_index * PIECE_BYTES
            rank_pieces = [memory[begin:begin + piece.nbytes].view(piece.dtype) for memory in self._rank_buffers]
            self._buffer_index = 1 - self._buffer_index
            rank_pieces[self._rank].copy_(piece)
            self._wait_for_all(piece.nbytes)
            yield rank_pieces

    def close(self) -> None:
        """Close the connections, so that ranks that wait for this one find that it is gone."""
        for link in self._peer_sockets:
            link.close()
        self._rank_buffers.clear()

    __del__ = close  # a shard that ends does not close its group

    def _wait_for_all(self, num_bytes: int) -> None:
        """Wait until all ranks have written a piece of `num_bytes` bytes."""
        own_signal = num_bytes.to_bytes(SIGNAL_BYTES, "little")
        try:
            for link in self._peer_sockets:
                link.send(own_signal)
            peer_signals = [link.recv(SIGNAL_BYTES) for link in self._peer_sockets]
        except OSError as error:
            raise PeerLost(f"a peer of rank {self._rank} is gone, or hangs: {error}") from error
        if b"" in peer_signals:
            raise PeerLost(f"a peer of rank {self._rank} is gone")
        if any(peer_signal != own_signal for peer_signal in peer_signals):
            raise PeerLost(f"rank {self._rank} and a peer are not in step: {num_bytes} bytes here, others there")

    def _connect_peers(self, own_descriptor: int, meeting_point: str, timeout_seconds: float) -> None:
        """Connect to each other rank, and map its memory. The higher rank connects to the lower."""
        own_path = f"{meeting_point}-{self._rank}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(own_path)
            listener.listen(len(self._rank_buffers))
            listener.settimeout(timeout_seconds)
            try:
                for peer_rank in range(len(self._rank_buffers) - 1):
                    peer_socket = (connect_with_retries(f"{meeting_point}-{peer_rank}", timeout_seconds)
                                   if peer_rank < self._rank else listener.accept()[0])
                    self._peer_sockets.append(peer_socket)
                    # Each read stays a single system call; settimeout() would make it two.
                    peer_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack(
                        "ll", int(timeout_seconds), int(timeout_seconds % 1 * 1e6)))
                    self._exchange_descriptors(peer_socket, own_descriptor)
            except (TimeoutError, BlockingIOError):
                raise PeerLost(f"a peer of rank {self._rank} did not come within {timeout_seconds:g} seconds") from None
            finally:
                os.unlink(own_path)

    def _exchange_descriptors(self, peer_socket: socket.socket, own_descriptor: int) -> None:
        try:
            socket.send_fds(peer_socket, [bytes([self._rank])], [own_descriptor])
            peer_rank, descriptors, *_ = socket.recv_fds(peer_socket, 1, 1)
        except ConnectionError:
            descriptors = []
        if not descriptors:
            raise PeerLost(f"a peer of rank {self._rank} is gone")
        self._rank_buffers[peer_rank[0]] = map_descriptor(descriptors[0])
        os.close(descriptors[0])


def create_anonymous_file(num_bytes: int) -> int:
    """Return a descriptor of unnamed memory, freed with its last user; of an unnamed file if memfd is not allowed."""
    try:
        descriptor = os.memfd_create("weft-ranks", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        with TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, num_bytes)
    return descriptor


def map_descriptor(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def connect_with_retries(path: str, timeout_seconds: float) -> socket.socket:
    """Return a connection, as soon as the socket accepts one. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            connection.connect(path)
            return connection
        connection.close()
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(CONNECT_RETRY_SECONDS)
