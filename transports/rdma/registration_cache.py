"""Registrations that outlive a send, of arrays that are sent again and again."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from transfer.transports.rdma.driver import DeviceHandle, MemoryRegion

#: bytes that stay registered for sends to come
MOST_KEPT = 4 << 30
#: sends that are remembered, to find what is sent again
_REMEMBERED = 1024


class _Key(NamedTuple):
    owner: int  # id()
    address: int
    length: int


class _Kept(weakref.ref[Any]):
    """The owner of registered memory, weakly. uses: one entry for each announcement that is not READ."""

    __slots__ = ("key", "region", "uses")

    key: _Key
    region: MemoryRegion
    uses: list[None]


class RegistrationCache:
    """Registers memory at its second send, and keeps that until its owner is gone, or others need the room.

    Only numpy arrays that own their memory: they cannot be resized while this refers to them, so an address
    means the same pages as long as the owner lives. A torch storage may be resized and come back to its
    address on other pages; a program that sends it again calls `register`. Thread-safe.

    enabled: not where a fork would take registered memory away from the child.
    """

    def __init__(
        self, device: DeviceHandle, register: Callable[[int, int], MemoryRegion], *, most: int = MOST_KEPT
    ) -> None:
        self.enabled = device.forks_freely
        self._register = register
        self._most = most
        # Of `find` alone. What the collector, the reactor or another registration calls takes none.
        self._lock = threading.RLock()
        self._kept: dict[_Key, _Kept] = {}  # the one used last is the last
        self._seen: dict[_Key, None] = {}
        device.reclaim = self._reclaim

    @property
    def registered(self) -> int:
        """Bytes that are kept."""
        return sum(key.length for key in list(self._kept))

    def find(self, data: Any, address: int, length: int) -> tuple[MemoryRegion, Callable[[], None]] | None:
        """(a registration of the data's memory, what ends its use), or None: it is registered for one send.
        Raises RegistrationError."""
        owner = _owner_of(data)
        if owner is None or length > self._most:
            return None
        key = _Key(id(owner), address, length)
        with self._lock:
            if not self.enabled:
                return None
            found = self._kept.pop(key, None)
            if found is not None and found() is not owner:  # of an array that is gone
                found.region.close()
                found = None
            if found is None:
                if not self._was_seen(key) or not self._make_room(self._most - length):
                    return None
                found = _Kept(owner, self._forget)
                found.key, found.uses, found.region = key, [], self._register(address, length)
            found.uses.append(None)  # before others see it
            self._kept[key] = found
            return found.region, found.uses.pop

    def _was_seen(self, key: _Key) -> bool:
        if key in self._seen:
            del self._seen[key]
            return True
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return False

    def _forget(self, found: Any) -> None:
        """The owner goes, its memory is still there. The collector may do that inside any statement."""
        kept = self._kept.get(found.key)
        if kept is not None and kept is found:
            self._end(kept)

    def _end(self, found: _Kept) -> None:
        self._kept.pop(found.key, None)
        found.region.close()

    def _make_room(self, most: int) -> bool:
        """Ends unused ones, the oldest first, until at most that many bytes are kept; whether it is so."""
        left = self.registered
        for found in list(self._kept.values()):
            if left <= most:
                break
            if not found.uses and self._kept.get(found.key) is found:
                self._end(found)
                left -= found.key.length
        return left <= most

    def _reclaim(self) -> bool:
        """Ends all unused ones; whether there was any."""
        before = len(self._kept)
        self._make_room(0)
        return len(self._kept) < before

    def close(self) -> None:
        """Deregisters all. Idempotent."""
        with self._lock:
            self.enabled = False
            for found in list(self._kept.values()):
                self._end(found)


def _owner_of(data: Any) -> Any:
    """The numpy array that owns this memory; None: something else does."""
    owner = getattr(data, "obj", data)
    while _is_array(owner) and owner.base is not None:
        owner = owner.base
    return owner if _is_array(owner) and owner.flags.owndata else None


def _is_array(found: Any) -> bool:
    kind = type(found)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"
