"""What a name service is to whoever follows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from transfer.transports.address import Address


@dataclass(frozen=True, slots=True)
class Listing:
    """What a name service said.

    members: tcp endpoints. ttl: seconds for which it holds; None: the directory waits for the next one by
    itself. complete: who is not in it has gone. Else it tells who is there, and nothing of others: an empty
    answer of DNS, or a registry that has just begun. gone: those who have gone in any case.
    """

    members: frozenset[Address]
    ttl: float | None = None
    complete: bool = True
    gone: frozenset[Address] = frozenset()


class Directory(ABC):
    """Asks one name service for one name. `look_up` is for one thread; `close` for any."""

    @abstractmethod
    def look_up(self) -> Listing:
        """What there is now. May wait: for an answer, a few seconds; for a change, as long as it likes.

        Raises TransferError: nothing is known of now (AddressError, Broken, Again), or the directory was
        closed (Closed).
        """

    @abstractmethod
    def close(self) -> None:
        """Wakes `look_up` if it waits for a change. Idempotent, never waits."""
