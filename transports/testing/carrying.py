"""Checks of a transport's streams: sent messages arrive, and lost ones are reported."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transfer.transports.core.wire import Flag, SocketType
from transfer.transports.errors import Broken
from transfer.transports.testing.ends import Ends, Subject, meet, plain, receive, until

if TYPE_CHECKING:
    from transfer.transports.core.contract import Frame, OutFrame


def check_carries(subject: Subject) -> None:
    """Messages arrive whole, in order and unchanged, both ways, from empty to some megabytes."""
    messages: list[list[OutFrame]] = [
        plain(b""),
        plain(b"x"),
        plain(b"a", b"", b"c" * 300),
        [(0, 0, b"topic", None, b"data")],
        [(0, 0, b"", None, b"an empty topic is one")],
        [(int(Flag.ACK), 77, None, None, b"with a number")],
        plain(bytes(range(256)) * 20),
        plain(b"m" * (3 << 20), b"tail"),
    ]
    with meet(subject) as ends:
        for here, there in ((ends.connecting, ends.accepting), (ends.accepting, ends.connecting)):
            for number, message in enumerate(messages, 1):
                assert here.send(message)
                arrived = receive(there)
                _compare(message, arrived)
                wanted = message[0][1] or number
                assert [frame.sequence for frame in arrived] == [wanted] * len(arrived)
                assert {frame.socket_type for frame in arrived} == {SocketType.PAIR}
            until(here.flush, "the last byte to leave")
            assert here.sent == there.received == there.consumed == len(messages)
            assert here.sent_bytes == there.received_bytes


def _compare(sent: Sequence[OutFrame], arrived: Sequence[Frame]) -> None:
    assert len(sent) == len(arrived), f"{len(arrived)} of {len(sent)} frames"
    for index, (out, frame) in enumerate(zip(sent, arrived, strict=True)):
        assert frame.topic == out[2]
        assert frame.meta == out[3]
        assert frame.bytes == bytes(out[4])
        assert frame.more == (index < len(sent) - 1)
        assert bool(frame.flags & Flag.ACK) == bool(out[0] & Flag.ACK)


#: below and above what transports send otherwise than in place: parts of one message go several ways
_MIXED = (200_000, 300_000, 200_000, 70_000)


def check_copies_what_may_change(subject: Subject) -> None:
    """Sent memory may be written to at once, and received memory belongs to the receiver."""
    for sizes in ((100,), (1 << 20,), _MIXED):
        with meet(subject) as ends:
            parts = [bytearray(b"\1" * size) for size in sizes]
            released: list[BaseException | None] = []
            assert ends.connecting.send(plain(*parts), released=released.append)
            for part in parts:
                part[:] = b"\2" * len(part)
                part.append(2)  # nothing exports it
            assert [frame.bytes for frame in receive(ends.accepting)] == [b"\1" * size for size in sizes]
            _until_released(ends, released)
            assert released == [None], released


def _until_released(ends: Ends, released: list[BaseException | None]) -> None:
    def is_released() -> bool:
        ends.connecting.flush()
        ends.reap()
        return bool(released)

    until(is_released, "the release")


def check_holds(subject: Subject) -> None:
    """With `hold`, memory stays exported until it is released, once."""
    with meet(subject) as ends:
        data = bytearray(4 << 20)
        released: list[BaseException | None] = []
        assert ends.connecting.send(plain(data), hold=True, released=released.append)
        if not released:
            try:
                data.append(1)
            except BufferError:
                pass
            else:
                assert released, "a buffer in flight could be resized"
        assert len(receive(ends.accepting)[0]) == 4 << 20
        _until_released(ends, released)
        assert released == [None], released


def check_releases_what_was_sent(subject: Subject) -> None:
    """With `hold`, memory may change from its release on: no part of the message needs it any more."""
    sizes = (300_000, *(200_000,) * 10)  # the last ones wait when the first, which goes otherwise, is read
    with meet(subject) as ends:
        parts = [bytearray(b"\1" * size) for size in sizes]
        released: list[BaseException | None] = []

        def change(error: BaseException | None) -> None:
            for part in parts:
                part[:] = bytes(len(part))
            released.append(error)

        assert ends.connecting.send(plain(*parts), hold=True, released=change)
        assert [frame.bytes for frame in receive(ends.accepting)] == [b"\1" * size for size in sizes]
        _until_released(ends, released)
        assert released == [None], released


def check_pushes_back(subject: Subject) -> None:
    """A full stream takes nothing and returns 0; when the other end reads, it takes more. Nothing is lost."""
    size = 64 << 10
    with meet(subject, send_high_water=8) as ends:
        sent = 0
        while ends.connecting.send(plain(sent.to_bytes(4, "little") + bytes(size))):
            sent += 1
            assert sent < 10_000, "the high-water mark does not stop the sender"
        assert ends.connecting.sent == sent
        assert ends.connecting.queued <= 8
        assert ends.connecting.send(plain(b"c", flags=int(Flag.CONTROL)), force=True)
        for number in range(sent):
            assert receive(ends.accepting)[0].bytes[:4] == number.to_bytes(4, "little")
            ends.connecting.flush()
        assert receive(ends.accepting)[0].flags & Flag.CONTROL
        assert ends.accepting.received == sent, "a control frame is no message"
        assert ends.connecting.send(plain(b"room again"))
        assert receive(ends.accepting)[0].bytes == b"room again"


def check_ends(subject: Subject) -> None:
    """Messages sent before a close arrive; then both ends are broken, and closing twice is fine."""
    with meet(subject) as ends:
        for number in range(3):
            assert ends.connecting.send(plain(b"%d" % number))
        until(ends.connecting.flush, "the last byte to leave")
        assert ends.connecting.close() == 0
        assert ends.connecting.close() == 0
        assert [receive(ends.accepting)[0].bytes for _ in range(3)] == [b"0", b"1", b"2"]
        _until_broken(ends.accepting.receive)
        _until_broken(lambda: ends.accepting.send(plain(b"no peer")))
        assert ends.accepting.broken is not None


def check_ends_without_callers(subject: Subject) -> None:
    """A stream that has ended holds nothing of those who learned it: no frame, and no local of one."""
    with meet(subject) as ends:
        ends.accepting.close()
        stream = ends.connecting
        held = [
            _local_of(call)
            for call in (stream.receive, stream.receive, lambda: stream.send(plain(b"no peer")))
        ]
        gc.collect()
        assert stream.broken is not None
        assert [local() for local in held] == [None] * len(held)


def _local_of(call: Callable[[], Any]) -> weakref.ref[Any]:
    """A local of a function that waits for the end."""
    local = threading.Event()
    _until_broken(call)
    return weakref.ref(local)


def _until_broken(call: Callable[[], Any]) -> None:
    until(lambda: _is_broken(call), "Broken")


def _is_broken(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Broken:
        return True
    return False


def check_gives_back(subject: Subject) -> None:
    """When the peer goes, messages that did not leave this process can be sent to another one."""
    payload = bytes(1 << 18)
    with meet(subject, send_high_water=0, send_high_water_bytes=0) as ends:
        # Nothing takes a gigabyte for a peer that does not read: buffers of the kernel grow to some
        # megabytes, and rdma announces 1,024 payloads. It is one payload's memory.
        count = 4000
        for number in range(count):
            assert ends.connecting.send(plain(number.to_bytes(4, "little"), payload))
        ends.accepting.close()
        _until_broken(lambda: ends.connecting.send(plain(b"")))
        taken = [message[0][4] for message in ends.connecting.take_unsent()]
        back = [int.from_bytes(data, "little") for data in taken if data]  # the tries are among them
        assert back, "some of it cannot have left"
        assert back == list(range(count - len(back), count))
        assert ends.connecting.take_unsent() == []


def check_gives_back_memory(subject: Subject) -> None:
    """When the peer goes, a sender that gets its memory back may resize it in the callback."""
    _gives_back_memory(subject, lambda stream: stream.take_unsent())
    _gives_back_memory(subject, lambda stream: stream.drop_unsent())


def _gives_back_memory(subject: Subject, end: Callable[[Any], object]) -> None:
    results: list[BaseException | None] = []

    def resizes(memory: bytearray) -> Callable[[BaseException | None], None]:
        def released(_: BaseException | None) -> None:
            try:
                memory.append(1)
                results.append(None)
            except BufferError as error:
                results.append(error)

        return released

    with meet(subject, send_high_water=0, send_high_water_bytes=0) as ends:
        for _ in range(4):
            memory = bytearray(16 << 20)
            assert ends.connecting.send(plain(memory), hold=True, released=resizes(memory))
        ends.accepting.close()
        until(lambda: _is_broken(ends.connecting.receive), "the end")
        end(ends.connecting)
        ends.connecting.close()  # at the latest this releases memory of partly sent messages
        until(lambda: ends.reap() is None and len(results) == 4, "the release")
        assert results == [None] * 4, results


def check_subscriptions(subject: Subject) -> None:
    """Prefixes are counted: a prefix that is subscribed twice has to be unsubscribed twice."""
    with meet(subject, kinds=(SocketType.PUB, SocketType.SUB)) as ends:
        stream = ends.connecting
        assert not stream.matches(b"topic")
        stream.subscribe(b"to")
        stream.subscribe(b"to")
        assert stream.matches(b"topic") and not stream.matches(b"t")
        assert stream.unsubscribe(b"to") and stream.matches(b"topic")
        assert stream.unsubscribe(b"to") and not stream.matches(b"topic")
        assert not stream.unsubscribe(b"to")
        stream.subscribe(b"")
        assert stream.matches(b"") and stream.matches(b"anything")
