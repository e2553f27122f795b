"""What both halves of a stream use of the whole (`stream.py`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from transfer.transports.base import Stream
from transfer.transports.errors import TransferError


class Half(Stream):
    """All but `_run_after` is used under the port's lock.

    beside: a `core.Stream` over the TCP connection. name: of the peer, for people. full: the last
    message was refused, and there was no room since.
    """

    control: Any
    name: str
    full: bool = False
    _generation: int

    @abstractmethod
    def _break(self, error: TransferError) -> None:
        """Ends the connection, once."""

    @abstractmethod
    def _is_broken(self) -> TransferError:
        """What a call raises from then on."""

    @abstractmethod
    def _say(self, data: bytes) -> None:
        """A word on the connection beside."""

    @abstractmethod
    def _wake(self, callback: Callable[[], None] | None) -> None:
        """Calls it when the lock is let go."""

    @abstractmethod
    def _watch(self) -> None:
        """Looks after announcements from now on."""

    @abstractmethod
    def _tell_soon(self) -> None:
        """Tells what was consumed, if nothing else does so within 20 ms."""

    @abstractmethod
    def _run_after(self) -> None:
        """Calls back, with no lock held."""
