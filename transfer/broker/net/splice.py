"""Payloads that pass through the broker without being copied: from a socket into a pipe, and out of pipes.

A pipe holds references to the pages that the kernel received the bytes in. `tee` gives another pipe the same
references, and a socket takes them as they are: one publisher's bytes go to many subscribers, and neither
this process nor the kernel copies them. (Pages of a file that a publisher on this machine sends by `sendfile`
are the file's until the last subscriber has read them.)
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

#: payloads of so many bytes and more go through pipes, where all who take them can
POUR_FROM = 256 << 10
#: bytes that are moved into a pipe at once
POURED_AT_ONCE = 1 << 20
#: room of a pipe: its bytes come in pages, each of them counts
_PIPE_SIZE = 1 << 20
#: pipes at most, and those that are kept when nothing is in them: each is two descriptors
_MOST, _KEPT = 48, 8
_NOW = 0x02  # SPLICE_F_NONBLOCK


class Pipe:
    """A pipe of the system."""

    __slots__ = ("reading", "writing")

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # refused to a user who has many already: then it is none of ours, since all are to be alike
            fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """With all that is in it."""
        os.close(self.reading)
        os.close(self.writing)


class Pipes:
    """The pipes of one loop. tee: as the system's call of this name."""

    def __init__(self, pool: Pool, tee: Callable[[int, int, int, int], int]) -> None:
        self.pool = pool
        self.tee = tee
        self._nothing = -1
        self._free: list[Pipe] = []
        self._made = 0
        self._closed = False

    def take(self) -> Pipe | None:
        """An empty pipe; None: there are enough, or the system has no more."""
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
        """A pipe that is empty again."""
        if len(self._free) < _KEPT and not self._closed:
            self._free.append(pipe)
        else:
            self.drop(pipe)

    def drop(self, pipe: Pipe) -> None:
        """A pipe that something is left in, which nobody wants."""
        self._made -= 1
        pipe.close()

    def empty(self, pipe: Pipe, nbytes: int) -> None:
        """Drops what is in a pipe. Raises OSError."""
        if self._nothing < 0:
            self._nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        while nbytes:
            nbytes -= os.splice(pipe.reading, self._nothing, nbytes, flags=_NOW)

    def close(self) -> None:
        """Those that somebody has are closed when they come back. Idempotent."""
        if not self._closed:
            self._closed = True
            while self._free:
                self.drop(self._free.pop())
            if self._nothing >= 0:
                os.close(self._nothing)


class SplicedChunk:
    """The next bytes of a payload, in a pipe. `end` it when all were given it. nbytes: as many."""

    def __init__(self, pipes: Pipes, pipe: Pipe, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pipes = pipes
        self._pipe = pipe
        self._memory: memoryview | None = None

    def __len__(self) -> int:
        return self.nbytes

    def share(self) -> Waiting | None:
        """The same bytes, for one receiver, or the first of them; None: it has to take them as `memory`."""
        if self._memory is not None or (pipe := self._pipes.take()) is None:
            return None
        try:
            nbytes = self._pipes.tee(self._pipe.reading, pipe.writing, self.nbytes, _NOW)
        except OSError:
            self._pipes.give(pipe)
            return None
        return Waiting(self._pipes, pipe, nbytes)

    def memory(self) -> memoryview:
        """A copy, which all have together who need one."""
        if self._memory is None:
            memory = memoryview(self._pipes.pool.lease(self.nbytes))[: self.nbytes]
            at = 0
            while at < self.nbytes:
                at += os.readv(self._pipe.reading, [memory[at:]])
            self._memory = memory.toreadonly()
        return self._memory

    def end(self) -> None:
        """The pipe is empty, and can be used again."""
        try:
            if self._memory is None:
                self._pipes.empty(self._pipe, self.nbytes)
        except OSError:
            self._pipes.drop(self._pipe)
        else:
            self._pipes.give(self._pipe)


class Waiting:
    """Bytes in a pipe that one socket is to take."""

    __slots__ = ("_left", "_pipe", "_pipes")

    def __init__(self, pipes: Pipes, pipe: Pipe, nbytes: int) -> None:
        self._pipes = pipes
        self._pipe = pipe
        self._left = nbytes

    def __len__(self) -> int:
        return self._left

    def write(self, descriptor: int) -> int:
        """Gives the socket as much as it takes. Raises BlockingIOError, OSError."""
        nbytes = os.splice(self._pipe.reading, descriptor, self._left, flags=_NOW)
        self._left -= nbytes
        return nbytes

    def end(self) -> None:
        """All of it was taken, or nobody wants the rest."""
        if self._left:
            self._pipes.drop(self._pipe)
        else:
            self._pipes.give(self._pipe)


def pour(pipes: Pipes, descriptor: int, most: int) -> SplicedChunk | None:
    """What a socket has, at most so many bytes. None: no pipe can be had. Raises BlockingIOError, OSError; no
    bytes at all: the peer has closed."""
    pipe = pipes.take()
    if pipe is None:
        return None
    try:
        nbytes = os.splice(descriptor, pipe.writing, min(most, POURED_AT_ONCE), flags=_NOW)
    except BaseException:
        pipes.give(pipe)
        raise
    return SplicedChunk(pipes, pipe, nbytes)


def pipes_of(pool: Pool) -> Pipes | None:
    """None: this system cannot do it."""
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
