"""What ranks that are processes of one machine lay before each other: memory that all of them see, and sockets by which
each tells the others that its part is there, and how long it is. Knows nothing of what is done with it."""

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

PIECE = 2**20  # bytes that a rank lays down at once
PAUSE = 0.005  # seconds until a rank that is not there yet is looked for again
SIGNAL = 4  # bytes that say how long a piece is


class PeerLost(RuntimeError):
    """Another rank is gone, hangs or does something else: no fault of the one that says so."""


class Exchange:
    def __init__(self, rank: int, size: int, meeting_point: str, timeout: float) -> None:
        """Returns when all ranks are there. They meet at sockets whose names begin with `meeting_point`, and which are
        gone then. `timeout` is in seconds, for whatever has to be waited for."""
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
        """Everybody's tensor, by rank, flat and piece by piece. All are of one shape. A piece stands until the next but
        one is asked for: nobody gets one before everybody has laid it down, so nobody is two pieces behind."""
        flat, step = x.contiguous().view(-1), PIECE // x.itemsize
        for start in range(0, max(1, len(flat)), step):
            piece, begin = flat[start:start + step], self._turn * PIECE
            places = [memory[begin:begin + piece.nbytes].view(piece.dtype) for memory in self._memory]
            self._turn = 1 - self._turn
            places[self._rank].copy_(piece)
            self._wait_for_all(piece.nbytes)
            yield places

    def close(self) -> None:
        """Whoever waits for this rank hears that it is gone."""
        for link in self._links:
            link.close()
        self._memory.clear()

    __del__ = close  # nobody tells a shard's group that it ends

    def _wait_for_all(self, size: int) -> None:
        """For a piece of so many bytes from everybody."""
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
        """With each of the others there is a link then, and each sees the other's memory. The higher number calls."""
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
    """A descriptor of memory without a name, which ends with the last who has it; of a file where that is forbidden."""
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
    """Whoever reads from it does so in one call to the system; settimeout() would make it two."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def called(door: str, timeout: float) -> socket.socket:
    """A connection, as soon as somebody is there. Raises TimeoutError."""
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
