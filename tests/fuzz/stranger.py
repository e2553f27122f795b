"""Says talks to a door as strangers do: at once, byte by byte, cut off, and without reading answers."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections import deque

from tests.faults.stranger import hang_up

#: connections that stay open while the next ones come
_HELD = 30
#: bytes that a slow one says one by one
_DRIPPED = 60


class Strangers:
    """Comes to one place, again and again. At the end `close` ends what is still open.

    place: (host, port), or the name of a Unix socket.
    """

    def __init__(self, place: tuple[str, int] | str) -> None:
        self._place = place
        self._held: deque[socket.socket] = deque()
        self.came = 0

    def come(self, words: list[bytes], seed: int) -> None:
        """One connection. Whatever the other side does is no mistake of its, as long as it serves others."""
        rng = random.Random(seed)
        self.came += 1
        with contextlib.suppress(OSError):
            peer = self._dial()
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

    def _dial(self) -> socket.socket:
        if isinstance(self._place, str):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(5)
            peer.connect(self._place)
            return peer
        return socket.create_connection(self._place, 5)

    def _say(self, peer: socket.socket, words: list[bytes], rng: random.Random) -> None:
        way = rng.random()
        peer.settimeout(0.05)
        if way < 0.4:
            peer.sendall(b"".join(words))
        elif way < 0.9:
            for word in words:
                peer.sendall(word)
                if rng.random() < 0.2:
                    time.sleep(0.001)
                if rng.random() < 0.5:
                    _listen(peer)
        else:
            data = b"".join(words)
            for at in range(min(_DRIPPED, len(data))):
                peer.sendall(data[at : at + 1])
            peer.sendall(data[_DRIPPED:])

    def _leave(self, peer: socket.socket, rng: random.Random) -> None:
        way = rng.random()
        if way < 0.25:
            hang_up(peer)
            return
        if way < 0.6:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_WR)  # and hears what is said to it
                peer.settimeout(0.02)
                for _ in range(20):
                    if not peer.recv(1 << 16):
                        break
        if way < 0.8:
            peer.close()
            return
        self._held.append(peer)
        if len(self._held) > _HELD:
            self._held.popleft().close()


def _listen(peer: socket.socket) -> None:
    """Takes what is there."""
    with contextlib.suppress(BlockingIOError):
        peer.recv(1 << 16, socket.MSG_DONTWAIT)
