"""Large messages on their way from a program to the broker, piece by piece."""

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

if TYPE_CHECKING:
    from transfer.broker.clients.native import BrokerClient


def is_large(parts: Sequence[Any]) -> bool:
    """Whether a message of these parts goes in pieces."""
    if len(parts) == 1 and type(parts[0]) is bytes:  # most of them
        return len(parts[0]) >= LARGE_FROM
    return sum(len(part) if type(part) is bytes else size_of(part) for part in parts) >= LARGE_FROM


def size_of(part: Any) -> int:
    """0: it is no plain buffer; whoever sends it says so."""
    try:
        view = memoryview(part)
    except (TypeError, ValueError, BufferError):
        return 0
    return view.nbytes if view.c_contiguous else 0


def plain_parts(parts: Sequence[Any]) -> list[tuple[Part, memoryview]]:
    """Parts as they are sent, and their bytes where they lie."""
    views = [PickleBuffer(part).raw() for part in parts]
    return [(Part(0, b"", len(view)), view) for view in views]


def tensor_parts(tensor: Any) -> list[tuple[Part, memoryview]]:
    """The same of a tensor. Raises NotATensor."""
    from transfer.tensors.export import export

    flags, header, buffer = export(tensor)
    view = PickleBuffer(buffer).raw()
    return [(Part(flags, header, len(view)), view)]


class Uploads:
    """Those of one client. A piece is sent when the broker grants it; others may say something in between."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client
        self._granted: dict[int, int] = {}
        self._last: dict[bytes, int] = {}  # by topic: the number of the last one

    def publish(self, name: bytes, parts: Sequence[tuple[Part, memoryview]]) -> int:
        """Sends all of it: its number. Raises Again, Broken, Closed; `wait_kept` tells what is refused."""
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
            with self._client.waited(lambda: True, None, ""):
                if self._client.is_open(number):
                    self._client.put([encode(Op.PIECE, number), *pieces.cut(some)])
            sent += some
        with self._client.waited(lambda: True, None, ""):
            if self._client.is_open(number):  # else `wait_kept` tells why not
                self._client.put([encode(Op.END, number)])

    def _may_send(self, number: int, sent: int, nbytes: int) -> int:
        """Bytes of the next piece, as soon as the broker takes some; 0: there are no more, or it has refused.
        Raises Again, Broken, Closed."""
        if sent == nbytes:
            return 0
        with self._client.waited(
            lambda: self._granted.get(number, 0) > sent or not self._client.is_open(number),
            None,
            "the broker took nothing more of a large message",
            publishes=True,
        ):
            return min(PIECE, self._granted[number] - sent) if self._client.is_open(number) else 0

    def granted(self, head: Head) -> None:
        """The broker takes more. With the client's lock."""
        if self._client.is_open(head.number):
            self._granted[head.number] = decode_grant(head)

    def is_behind(self, topic: bytes) -> bool:
        """Whether a large message of this topic is not kept yet: what is sent now could stand before it."""
        last = self._last.get(topic)
        if last is not None and not self._client.is_open(last):
            self._last.pop(topic, None)
            return False
        return last is not None

    def wait(self, topic: bytes) -> None:
        """Until it is not. Raises Again, Broken, Closed."""
        with self._client.waited(
            lambda: not self.is_behind(topic), None, "a large message was not acknowledged", publishes=True
        ):
            return


class _Cutter:
    """Cuts views into pieces, without copies."""

    def __init__(self, views: Sequence[memoryview]) -> None:
        self._views: Iterator[memoryview] = iter(views)
        self._rest = memoryview(b"")

    def cut(self, nbytes: int) -> list[memoryview]:
        """The next bytes."""
        found = []
        while nbytes:
            if not self._rest:
                self._rest = next(self._views)
                continue
            piece, self._rest = self._rest[:nbytes], self._rest[nbytes:]
            nbytes -= len(piece)
            found.append(piece)
        return found
