"""The interface of a name service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from transfer.transports.address import Address


@dataclass(frozen=True, slots=True)
class Listing:
    """An answer of a name service.

    members: tcp endpoints. ttl: seconds for which it is valid; None: the directory waits for the next one by
    itself. complete: an endpoint that is missing has gone. Otherwise the answer lists some that are there and
    states nothing about others: an empty answer of DNS, or a registry that has just started. gone: endpoints
    that have gone in any case.
    """

    members: frozenset[Address]
    ttl: float | None = None
    complete: bool = True
    gone: frozenset[Address] = frozenset()


class Directory(ABC):
    """Queries one name service for one name. `look_up` is for one thread; `close` for any."""

    @abstractmethod
    def look_up(self) -> Listing:
        """Returns the present members. May wait: a few seconds for an answer, and for a change without limit.

        Raises TransferError: there is no answer now (AddressError, Broken, Again), or the directory was
        closed (Closed).
        """

    @abstractmethod
    def close(self) -> None:
        """Wakes `look_up` if it waits for a change. Idempotent, never waits."""
