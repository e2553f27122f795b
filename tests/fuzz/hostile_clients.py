"""Sends talks as hostile clients do: at once, byte by byte, cut off, and without reading answers."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from tests.faults.raw_peer import reset
from tests.fuzz.dialers import Dial
from transfer.transports.errors import TransferError

#: connections that stay open while the next ones come
_HELD = 30
#: bytes that a slow one says one by one
_BYTE_BY_BYTE = 60


class HostileClients:
    """Connects in one way, again and again. At the end `close` ends what is still open."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._held: deque[Any] = deque()
        self.came = 0

    def connect(self, words: list[bytes], seed: int) -> None:
        """One connection. Whatever the other side does is no mistake of its, as long as it serves others."""
        rng = random.Random(seed)
        self.came += 1
        with contextlib.suppress(OSError, TransferError):
            peer = self._dial(rng)
            try:
                self._say(peer, words, rng)
            except OSError:
                pass
            finally:
                self._leave(peer, rng)

    def close(self) -> None:
        """Idempotent."""
        while self._held:
            self._held.popleft().close()

    def _say(self, peer: Any, words: list[bytes], rng: random.Random) -> None:
        choice = rng.random()
        peer.settimeout(0.05)
        if choice < 0.4:
            peer.sendall(b"".join(words))
        elif choice < 0.9:
            for word in words:
                peer.sendall(word)
                if rng.random() < 0.2:
                    time.sleep(0.001)
                if rng.random() < 0.5:
                    _listen(peer)
        else:
            data = b"".join(words)
            for at in range(min(_BYTE_BY_BYTE, len(data))):
                peer.sendall(data[at : at + 1])
            peer.sendall(data[_BYTE_BY_BYTE:])

    def _leave(self, peer: Any, rng: random.Random) -> None:
        choice = rng.random()
        if choice < 0.25:
            reset(peer)
            return
        if choice < 0.6:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)  # and hears what is said to it
                peer.settimeout(0.02)
                for _ in range(20):
                    if not peer.recv(1 << 16):
                        break
        if choice < 0.8:
            peer.close()
            return
        self._held.append(peer)
        if len(self._held) > _HELD:
            self._held.popleft().close()


def _listen(peer: Any) -> None:
    """Takes what is there."""
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
        peer.settimeout(0)
        peer.recv(1 << 16)
    peer.settimeout(0.05)


class _SlowClient:
    """One connection that says its talk byte by byte, and from some byte on nothing more."""

    def __init__(self, peer: Any, data: bytes, rng: random.Random) -> None:
        self.peer = peer
        start = rng.randrange(len(data)) if rng.random() < 0.7 else 0
        peer.settimeout(0.05)
        peer.sendall(data[:start])
        self._rest = deque(data[start:][: rng.choice((0, 5, 1000))])
        self._pause = rng.choice((0.1, 0.5, 2.0))
        self.due = time.monotonic() + self._pause

    def go_on(self) -> None:
        """Says a byte if it is time for it. Raises OSError when the other side has ended it."""
        if self._rest and time.monotonic() >= self.due:
            self.due += self._pause
            self.peer.sendall(bytes([self._rest.popleft()]))
        if select.select([self.peer], [], [], 0)[0]:
            self.peer.settimeout(0)
            try:
                if not self.peer.recv(1 << 16):
                    raise ConnectionResetError
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            self.peer.settimeout(0.05)


class SlowClients:
    """Many slow ones at a time, on a thread of their own, for as long as the block lasts. Each that is put
    out is followed by another.

    talk: by seed. ended: how many the other side has ended. failed: what ended the thread too early.
    """

    def __init__(self, dial: Dial, talk: Callable[[int], list[bytes]], many: int) -> None:
        self.ended = 0
        self.failed: BaseException | None = None
        self._dial, self._talk, self._many = dial, talk, many
        self._open: list[_SlowClient] = []
        self._seed = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow-clients")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        for one in self._open:
            one.peer.close()
        assert self.failed is None, repr(self.failed)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.05):
                self._open = [one for one in self._open if self._lives(one)]
                if len(self._open) < self._many:
                    self._connect()
        except BaseException as error:  # noqa: BLE001 - the block's end raises it
            self.failed = error

    def _connect(self) -> None:
        self._seed += 1
        rng = random.Random(f"drip {self._seed}")
        with contextlib.suppress(OSError, TransferError):
            peer = self._dial(rng)
            try:
                self._open.append(_SlowClient(peer, b"".join(self._talk(self._seed)) or b"\0", rng))
            except OSError:
                peer.close()

    def _lives(self, one: _SlowClient) -> bool:
        try:
            one.go_on()
        except OSError:
            self.ended += 1
            one.peer.close()
            return False
        return True
