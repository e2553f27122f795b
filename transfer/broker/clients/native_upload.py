"""Sends large messages from a program to the broker in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from transfer.broker.protocols.native import Head, Op, encode
from transfer.broker.protocols.native_pieces import (
    LARGE_FROM,
    PIECE,
    Begin,
    Part,
    decode_grant,
    encode_begin,
    pack_parts,
)
from transfer.transports.errors import not_a_buffer

if TYPE_CHECKING:
    from transfer.broker.clients.native import BrokerClient


def is_large(parts: Sequence[Any]) -> bool:
    """Whether a message of these parts is sent in pieces."""
    if len(parts) == 1 and type(parts[0]) is bytes:  # the most frequent case
        return len(parts[0]) >= LARGE_FROM
    return sum(len(part) if type(part) is bytes else size_of(part) for part in parts) >= LARGE_FROM


def size_of(part: Any) -> int:
    """Returns the bytes of a buffer; 0 if it has gaps: the call that sends it raises the error.

    Raises ArgumentError: it is none.
    """
    try:
        view = memoryview(part)
    except (TypeError, ValueError, BufferError):
        raise not_a_buffer(part) from None
    return view.nbytes if view.c_contiguous else 0


def plain_parts(parts: Sequence[Any]) -> list[tuple[Part, memoryview]]:
    """Returns parts as they are sent, with views of their bytes."""
    views = [PickleBuffer(part).raw() for part in parts]
    return [(Part(0, b"", len(view)), view) for view in views]


def tensor_parts(tensor: Any) -> list[tuple[Part, memoryview]]:
    """Returns a tensor's part, with a view of its bytes. Raises NotATensor."""
    from transfer.tensors.export import export

    flags, header, buffer = export(tensor)
    view = PickleBuffer(buffer).raw()
    return [(Part(flags, header, len(view)), view)]


class Uploads:
    """The uploads of one client.

    It sends a piece after the broker's grant; other threads may send in between.
    """

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._granted: dict[int, int] = {}
        self._last: dict[bytes, int] = {}  # by topic: the number of the last large message

    def publish(self, name: bytes, parts: Sequence[tuple[Part, memoryview]]) -> int:
        """Sends a message, and returns its number.

        Raises Again, Broken, Closed; `wait_kept` raises refusals.
        """
        views = [view for _, view in parts]
        nbytes = sum(map(len, views))
        if nbytes < LARGE_FROM:
            return self._whole(name, parts)
        begin = Begin(name, nbytes, pack_parts(part for part, _ in parts))
        number = self._client.begin(lambda number: [encode_begin(number, begin)])
        try:
            self._last[name] = number
            self._send(number, views, nbytes)
        except BaseException:
            self._client.give_up(number, [encode(Op.END, number)])
            raise
        finally:
            self._granted.pop(number, None)
        return number

    def _whole(self, name: bytes, parts: Sequence[tuple[Part, memoryview]]) -> int:
        if self.is_behind(name):
            self.wait(name)
        frames = [(None, part.meta or None, part.flags, view) for part, view in parts]
        return self._client.begin(lambda number: [(None, None, 0, encode(Op.PUBLISH, number, name)), *frames])

    def _send(self, number: int, views: Sequence[memoryview], nbytes: int) -> None:
        sent, pieces = 0, _Cutter(views)
        while some := self._may_send(number, sent, nbytes):
            with self._client.wait_until(lambda: True, None, ""):
                if self._client.is_open(number):
                    self._client.put([encode(Op.PIECE, number), *pieces.cut(some)])
            sent += some
        with self._client.wait_until(lambda: True, None, ""):
            if self._client.is_open(number):  # else `wait_kept` raises the reason
                self._client.put([encode(Op.END, number)])

    def _may_send(self, number: int, sent: int, nbytes: int) -> int:
        """Waits for a grant, and returns the bytes of the next piece. Raises Again, Broken, Closed.

        It returns 0 at the end of the message, or if the broker has refused it.
        """
        if sent == nbytes:
            return 0
        with self._client.wait_until(
            lambda: self._granted.get(number, 0) > sent or not self._client.is_open(number),
            None,
            "the broker took nothing more of a large message",
            publishes=True,
        ):
            return min(PIECE, self._granted[number] - sent) if self._client.is_open(number) else 0

    def granted(self, head: Head) -> None:
        """Handles a GRANT of the broker. With the client's lock."""
        if self._client.is_open(head.number):
            self._granted[head.number] = decode_grant(head)

    def is_behind(self, topic: bytes) -> bool:
        """Whether a large message of this topic is not kept yet: a message sent now could overtake it."""
        last = self._last.get(topic)
        if last is not None and not self._client.is_open(last):
            self._last.pop(topic, None)
            return False
        return last is not None

    def wait(self, topic: bytes) -> None:
        """Waits until no large message of this topic is unkept. Raises Again, Broken, Closed."""
        with self._client.wait_until(
            lambda: not self.is_behind(topic), None, "a large message was not acknowledged", publishes=True
        ):
            return


class _Cutter:
    """Cuts views into pieces, without copies."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views: Iterator[memoryview] = iter(views)
        self._rest = memoryview(b"")

    def cut(self, nbytes: int) -> list[memoryview]:
        """Returns views of the next bytes."""
        found = []
        while nbytes:
            if not self._rest:
                self._rest = next(self._views)
                continue
            piece, self._rest = self._rest[:nbytes], self._rest[nbytes:]
            nbytes -= len(piece)
            found.append(piece)
        return found
