"""The interface of the whole stream (`stream.py`) that both halves use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from transfer.transports.base import Stream
from transfer.transports.errors import TransferError


class Half(Stream):
    """All methods but `_run_after` are called under the port's lock.

    control: a `core.Stream` over the TCP connection. name: of the peer, for logs. full: the last
    message was refused, and there has been no room since.
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
        """The error that a call raises from then on."""

    @abstractmethod
    def _send_control(self, data: bytes) -> None:
        """Sends a message on the control connection."""

    @abstractmethod
    def _wake(self, callback: Callable[[], None] | None) -> None:
        """Calls it after the lock is released."""

    @abstractmethod
    def _watch(self) -> None:
        """Checks announcements from now on."""

    @abstractmethod
    def _report_soon(self) -> None:
        """Reports the consumed messages, unless another report does so within 20 ms."""

    @abstractmethod
    def _run_after(self) -> None:
        """Calls the callbacks, with no lock held."""
