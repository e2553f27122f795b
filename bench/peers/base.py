"""The interface of a benchmark's peer: channels whose `send` and `recv` the timed loop calls directly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from bench.work import PATIENCE, Skipped, Work


class Role(Enum):
    """One end of a pattern. PULL, REP, PUB and PAIR_BOUND bind, the others connect."""

    PUSH = "push"
    PULL = "pull"
    REQ = "req"
    REP = "rep"
    PUB = "pub"
    SUB = "sub"
    PAIR = "pair"
    PAIR_BOUND = "pair_bound"


def nothing(*_: Any) -> None:
    """Does nothing, for a channel without a wait or a close."""


def unsupported(*_: Any) -> Any:
    raise Skipped("this end of the channel has no such direction")


@dataclass(slots=True)
class Channel:
    """One open end.

    `send` and `recv` are the library's functions where possible: wrappers would be measured, too. A `recv`
    returns an object with a length in bytes, or the tensors.
    """

    address: str = ""
    send: Callable[[Any], Any] = unsupported
    recv: Callable[[], Any] = unsupported
    #: blocks until so many peers are connected (subscriptions included)
    ready: Callable[[int], None] = nothing
    close: Callable[[], None] = nothing
    #: the library's socket, for cases that need more than send and recv
    socket: Any = field(default=None, repr=False)


class Peer(ABC):
    """A measured library. Made in the process that uses it."""

    name: str
    #: errors of a `recv` after its timeout
    silence: tuple[type[BaseException], ...] = (TimeoutError,)

    @abstractmethod
    def open(self, role: Role, work: Work, address: str = "") -> Channel:
        """Binds to `work.params["host"]` (default 127.0.0.1), or connects to `address`.

        Messages are bytes of `work.size`; sizes of 64 KiB or more go without copies if the library can do
        that. Raises Skipped for a role that it does not have.
        """

    def open_tensor(self, role: Role, work: Work, address: str = "") -> Channel:
        """Like `open` for PUSH and PULL; `send` takes a numpy array, `recv` returns one."""
        raise Skipped(f"{self.name} sends no tensors")

    def open_tensors(self, role: Role, work: Work, address: str = "") -> Channel:
        """Like `open_tensor`, with a dict of arrays by name."""
        raise Skipped(f"{self.name} sends no dicts of tensors")

    def open_async(self, role: Role, work: Work, address: str = "") -> Channel:
        """Like `open` for PUSH and PULL; `send` and `recv` return awaitables."""
        raise Skipped(f"{self.name} has no asyncio interface")


def use_bare(channel: Channel, work: Work) -> Channel:
    """A socket's send and recv, without copies where the work requires that (pyzmq's names)."""
    socket = channel.socket
    if work.copies:
        channel.send, channel.recv = socket.send, socket.recv
    else:
        channel.send = partial(socket.send, copy=False)
        channel.recv = partial(socket.recv, copy=False)
    return channel


def patience_of(work: Work) -> float:
    """Returns the seconds that a send or recv of this work may wait."""
    seconds: float = work.params.get("patience", PATIENCE)
    return seconds


def host_of(work: Work) -> str:
    host: str = work.params.get("host", "127.0.0.1")
    return host
