"""Shared-memory exchange between ranks that are processes of one machine. Unix sockets signal that a piece is ready,
and its length."""

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

PIECE = 2**20  # bytes that a rank writes at once
PAUSE = 0.005  # seconds between attempts to connect to a rank that does not listen yet
SIGNAL = 4  # bytes of a signal, which is the length of a piece


class PeerLost(RuntimeError):
    """Loss of another rank, which is gone, hangs or is out of step. The rank that raises this is not the cause."""


class Exchange:
    """All-gather of tensors over memory that every rank has mapped."""

    def __init__(self, rank: int, size: int, meeting_point: str, timeout: float) -> None:
        """Connect to all other ranks; return when all are connected. They meet at sockets whose names begin with
        `meeting_point`, which are removed then. `timeout` is in seconds, for every single wait."""
        self._rank = rank
        self._turn = 0
        self._links: list[socket.socket] = []
        self._memory: list[Tensor] = [torch.empty(0)] * size
        mine = anonymous_file(2 * PIECE)
        try:
            self._memory[rank] = mapped(mine)
            self._meet(mine, meeting_point, timeout)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(mine)

    def parts(self, x: Tensor) -> Iterator[list[Tensor]]:
        """Yield the tensors of all ranks, by rank, flat and piece by piece. All have one shape. A piece is valid until
        the next but one is requested: no rank gets a piece before all have written theirs, so none is two pieces
        behind."""
        flat, step = x.contiguous().view(-1), PIECE // x.itemsize
        for start in range(0, max(1, len(flat)), step):
            piece, begin = flat[start:start + step], self._turn * PIECE
            places = [memory[begin:begin + piece.nbytes].view(piece.dtype) for memory in self._memory]
            self._turn = 1 - self._turn
            places[self._rank].copy_(piece)
            self._wait_for_all(piece.nbytes)
            yield places

    def close(self) -> None:
        """Close the connections, so that ranks that wait for this one find that it is gone."""
        for link in self._links:
            link.close()
        self._memory.clear()

    __del__ = close  # a shard that ends does not close its group

    def _wait_for_all(self, size: int) -> None:
        """Wait until all ranks have written a piece of `size` bytes."""
        mine = size.to_bytes(SIGNAL, "little")
        try:
            for link in self._links:
                link.send(mine)
            told = [link.recv(SIGNAL) for link in self._links]
        except OSError as error:
            raise PeerLost(f"a peer of rank {self._rank} is gone, or hangs: {error}") from error
        if b"" in told:
            raise PeerLost(f"a peer of rank {self._rank} is gone")
        if any(theirs != mine for theirs in told):
            raise PeerLost(f"rank {self._rank} and a peer are not in step: {size} bytes here, others there")

    def _meet(self, mine: int, meeting_point: str, timeout: float) -> None:
        """Connect to each other rank, and map its memory. The higher rank connects to the lower."""
        own = f"{meeting_point}-{self._rank}"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(own)
            door.listen(len(self._memory))
            door.settimeout(timeout)
            try:
                for other in range(len(self._memory) - 1):
                    link = called(f"{meeting_point}-{other}", timeout) if other < self._rank else door.accept()[0]
                    self._links.append(link)
                    wait_at_most(link, timeout)
                    self._greet(link, mine)
            except (TimeoutError, BlockingIOError):
                raise PeerLost(f"a peer of rank {self._rank} did not come within {timeout:g} seconds") from None
            finally:
                os.unlink(own)

    def _greet(self, link: socket.socket, mine: int) -> None:
        try:
            socket.send_fds(link, [bytes([self._rank])], [mine])
            number, descriptors, *_ = socket.recv_fds(link, 1, 1)
        except ConnectionError:
            descriptors = []
        if not descriptors:
            raise PeerLost(f"a peer of rank {self._rank} is gone")
        self._memory[number[0]] = mapped(descriptors[0])
        os.close(descriptors[0])


def anonymous_file(size: int) -> int:
    """Return a descriptor of unnamed memory, freed with its last user; of an unnamed file if memfd is not allowed."""
    try:
        descriptor = os.memfd_create("weft-ranks", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        with TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor


def mapped(descriptor: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)


def wait_at_most(link: socket.socket, seconds: float) -> None:
    """Set a timeout for reads. Each read stays a single system call; settimeout() would make it two."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def called(door: str, timeout: float) -> socket.socket:
    """Return a connection, as soon as the socket accepts one. Raises TimeoutError."""
    end = time.monotonic() + timeout
    while True:
        link = socket.socket(socket.AF_UNIX)
        with suppress(FileNotFoundError, ConnectionRefusedError):
            link.connect(door)
            return link
        link.close()
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(PAUSE)
