"""Passes payloads through the broker without copies: from a socket into a pipe, and from pipes to sockets.

A pipe holds references to the pages into which the kernel received the bytes. `tee` gives another pipe the
same references, and sockets send these pages: neither this process nor the kernel copies one publisher's
bytes for its subscribers. (If a publisher on this machine sends a file by `sendfile`, the pages stay the
file's pages until the last subscriber has read them.)
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transfer.transports.core.contract import Pool

#: bytes of a payload from which it goes through pipes, if all its receivers support that
SPLICE_FROM = 256 << 10
#: bytes that one call moves into a pipe
SPLICED_AT_ONCE = 1 << 20
#: capacity of a pipe, which counts whole pages
_PIPE_SIZE = 1 << 20
#: pipes at most, and empty pipes that are kept: each takes two descriptors
_MOST, _KEPT = 48, 8
_NOW = 0x02  # SPLICE_F_NONBLOCK


class Pipe:
    """A pipe of the kernel, with a capacity of _PIPE_SIZE. Raises OSError."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # The kernel refuses it to a user with many pipes. All pipes need the same capacity.
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the pipe, and drops its content."""
        os.close(self.reading)
        os.close(self.writing)


class Pipes:
    """The pipes of one loop. tee: the system call of this name."""

    def __init__(self, pool: Pool, tee: Callable[[int, int, int, int], int]) -> None:
        self.pool = pool
        self.tee = tee
        self._nothing = -1
        self._free: list[Pipe] = []
        self._made = 0
        self._closed = False

    def take(self) -> Pipe | None:
        """Returns an empty pipe; None if there are too many, or the kernel has no more."""
        if self._free:
            return self._free.pop()
        if self._made >= _MOST or self._closed:
            return None
        try:
            pipe = Pipe()
        except OSError:
            return None
        self._made += 1
        return pipe

    def give(self, pipe: Pipe) -> None:
        """Takes back a pipe that is empty again."""
        if len(self._free) < _KEPT and not self._closed:
            self._free.append(pipe)
        else:
            self.drop(pipe)

    def drop(self, pipe: Pipe) -> None:
        """Closes a pipe, and drops its content."""
        self._made -= 1
        pipe.close()

    def empty(self, pipe: Pipe, nbytes: int) -> None:
        """Drops the content of a pipe. Raises OSError."""
        if self._nothing < 0:
            self._nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        while nbytes:
            nbytes -= os.splice(pipe.reading, self._nothing, nbytes, flags=_NOW)

    def close(self) -> None:
        """Closes the free pipes; used ones are closed when they come back. Idempotent."""
        if not self._closed:
            self._closed = True
            while self._free:
                self.drop(self._free.pop())
            if self._nothing >= 0:
                os.close(self._nothing)


class SplicedChunk:
    """The next `nbytes` bytes of a payload, in a pipe. Call `end` after all receivers have got them."""

    def __init__(self, pipes: Pipes, pipe: Pipe, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pipes = pipes
        self._pipe = pipe
        self._memory: memoryview | None = None

    def __len__(self) -> int:
        return self.nbytes

    def share(self) -> PipedBytes | None:
        """Returns these bytes, or the first of them, for one receiver; None: it has to use `memory`."""
        if self._memory is not None or (pipe := self._pipes.take()) is None:
            return None
        try:
            nbytes = self._pipes.tee(self._pipe.reading, pipe.writing, self.nbytes, _NOW)
        except OSError:
            self._pipes.give(pipe)
            return None
        return PipedBytes(self._pipes, pipe, nbytes)

    def memory(self) -> memoryview:
        """Returns a copy, which all receivers that need one share."""
        if self._memory is None:
            memory = memoryview(self._pipes.pool.lease(self.nbytes))[: self.nbytes]
            at = 0
            while at < self.nbytes:
                at += os.readv(self._pipe.reading, [memory[at:]])
            self._memory = memory.toreadonly()
        return self._memory

    def end(self) -> None:
        """Empties the pipe, and gives it back."""
        try:
            if self._memory is None:
                self._pipes.empty(self._pipe, self.nbytes)
        except OSError:
            self._pipes.drop(self._pipe)
        else:
            self._pipes.give(self._pipe)


class PipedBytes:
    """Bytes in a pipe for one socket."""

    __slots__ = ("_left", "_pipe", "_pipes")

    def __init__(self, pipes: Pipes, pipe: Pipe, nbytes: int) -> None:
        self._pipes = pipes
        self._pipe = pipe
        self._left = nbytes

    def __len__(self) -> int:
        return self._left

    def write(self, descriptor: int) -> int:
        """Writes as much as the socket takes. Raises BlockingIOError, OSError."""
        nbytes = os.splice(self._pipe.reading, descriptor, self._left, flags=_NOW)
        self._left -= nbytes
        return nbytes

    def end(self) -> None:
        """Gives the pipe back, and drops what is left."""
        if self._left:
            self._pipes.drop(self._pipe)
        else:
            self._pipes.give(self._pipe)


def splice_in(pipes: Pipes, descriptor: int, most: int) -> SplicedChunk | None:
    """Moves up to `most` received bytes of a socket into a pipe; None if there is no pipe.

    Without any byte the peer has closed. Raises BlockingIOError, OSError.
    """
    pipe = pipes.take()
    if pipe is None:
        return None
    try:
        nbytes = os.splice(descriptor, pipe.writing, min(most, SPLICED_AT_ONCE), flags=_NOW)
    except BaseException:
        pipes.give(pipe)
        raise
    return SplicedChunk(pipes, pipe, nbytes)


def pipes_of(pool: Pool) -> Pipes | None:
    """Makes the pipes of a loop; None if this system has no splice."""
    if sys.platform != "linux" or not hasattr(os, "splice"):
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).tee
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
    found.restype = ctypes.c_ssize_t

    def tee(source: int, target: int, nbytes: int, flags: int) -> int:
        done: int = found(source, target, nbytes, flags)
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return done

    return Pipes(pool, tee)
