"""The client of the broker's native front: publishes with acknowledgements, and consumes in groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import transfer
from transfer.broker.clients.native_batch import Batch
from transfer.broker.clients.native_consumer import Consumer, Received, join_of
from transfer.broker.clients.native_errors import NotTaken, error_of
from transfer.broker.clients.native_fetch import Fetches
from transfer.broker.clients.native_socket import connected_socket, context_of
from transfer.broker.clients.native_upload import Uploads, is_large, plain_parts, size_of, tensor_parts
from transfer.broker.clients.native_window import TRY_AGAIN, PublishWindow
from transfer.broker.core.topic_names import encode_topic
from transfer.broker.protocols.native import HELD_UP, MOST, Head, Op, decode, decode_words, encode
from transfer.broker.protocols.native_batch import decode_several
from transfer.broker.protocols.native_pieces import Part
from transfer.transports.arguments import patience, sequence, whole
from transfer.transports.errors import Again, Broken, Closed, TransferError, UsageError, unraised

__all__ = ["BrokerClient", "Consumer", "Received"]

#: seconds that a call waits for the broker's answer
_TIMEOUT = 30.0
#: seconds of silence after which the client checks whether the connection exists
_CHECK_INTERVAL = 0.2

_GONE = "the broker is gone; messages that it has not acknowledged may be kept or not"
_AGAIN = "make a new client, or BrokerClient(..., reconnect=True), which connects again"


class BrokerClient:
    """One connection to a broker. Thread-safe: some threads may wait for messages while others publish.

    endpoint: the broker's `requests`. timeout: seconds that a call waits at most. reconnect: what happens
    after the connection's end. False: every call raises Broken. True: the next call connects again, and waits
    up to its timeout for the broker. Messages without an acknowledgement raise Broken once, from `publish`,
    `wait_kept` or `flush` (they may be kept or not). Consumers join again, and receive again the messages
    that they have not acknowledged. Use `close`, or `with`.

    Raises Again if no broker answers within `timeout` seconds.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        context: transfer.Context | None = None,
        timeout: float = _TIMEOUT,
        reconnect: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._context = context_of(context)
        self._owns_context = context is None
        self._timeout = timeout = patience(timeout, endless=False) or 0.0
        self._reconnect = reconnect
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._polling = False  # a thread polls the socket without the lock; other threads wait for it
        self._number = 1
        self._open: set[int] = set()  # messages that are not acknowledged yet
        self._refused: dict[int, TransferError] = {}
        self._window = PublishWindow()
        self._consumers: dict[int, Consumer] = {}
        self._socket: Any = None
        self._failure: TransferError | None = None
        self._batch = Batch()
        self._uploads = Uploads(self)
        self.fetches = Fetches(self, self._context.pool.lease)
        try:
            self._connect(time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection; waiting calls raise Closed. Idempotent.

        Other consumers get the messages that this client's consumers have not acknowledged.
        """
        self._failure = Closed("the client is closed")
        if self._socket is not None:
            self._socket.close(0)
        if self._owns_context:
            self._context.destroy(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- publishing --------------------------------------------------------------------------------------

    def publish(self, topic: str, *parts: Any, wait: bool = True) -> int:
        """Publishes one message of one or more parts, and returns its number for `wait_kept`.

        wait: returns when the message is kept as the topic promises. Else `flush` waits for all. Raises
        Again when the broker does not answer in time, Broken when it is gone (the message may be kept or
        not), and the broker's refusals.
        """
        if not parts:
            raise UsageError("a message without parts")
        if is_large(parts):
            return self._publish_large(topic, plain_parts(parts), wait)
        return self._publish(Op.PUBLISH, topic, parts, 1, wait)[0]

    def publish_tensor(self, topic: str, tensor: Any, *, wait: bool = True) -> int:
        """Publishes a tensor of numpy, torch, or any type with DLPack or the buffer protocol.

        `Received.tensor` returns it. Raises NotATensor, and as `publish`.
        """
        return self._publish_large(topic, tensor_parts(tensor), wait)

    def _publish_large(self, topic: str, parts: Sequence[tuple[Part, memoryview]], wait: bool) -> int:
        number = self._uploads.publish(encode_topic(topic), parts)
        if wait:
            self.wait_kept(number)
        return number

    def publish_many(self, topic: str, payloads: Sequence[Any], *, wait: bool = True) -> range:
        """Publishes messages of one part each in one request, and returns their numbers. See `publish`."""
        payloads = [*sequence(payloads, "payloads", "messages")]
        if not 0 < len(payloads) <= MOST:
            raise UsageError(f"{len(payloads)} messages at once", hint=f"1 to {MOST}")
        return self._publish(Op.PUBLISH_MANY, topic, payloads, len(payloads), wait)

    def _publish(self, op: Op, topic: str, parts: Sequence[Any], count: int, wait: bool) -> range:
        name = encode_topic(topic)
        if self._uploads.is_behind(name):
            self._uploads.wait(name)
        deadline = time.monotonic() + self._timeout
        while True:
            numbers = self._publish_once(op, name, parts, count, wait, deadline)
            try:
                if wait:
                    self.wait_kept(*numbers, timeout=max(0.0, deadline - time.monotonic()))
                return numbers
            except NotTaken:
                if time.monotonic() + TRY_AGAIN >= deadline:
                    raise
            time.sleep(TRY_AGAIN)

    def _publish_once(
        self, op: Op, name: bytes, parts: Sequence[Any], count: int, wait: bool, deadline: float
    ) -> range:
        if self._window.is_full and not self._batch.is_mine:
            answered, left = (lambda: not (self._window.held_up and self._open)), deadline - time.monotonic()
            with self.wait_until(answered, max(0.0, left), "nothing more was taken", publishes=True):
                self._window.begin()
        nbytes = sum(map(size_of, parts))  # before a batch takes them: it could not name the wrong part
        with self._lock:
            self._ready(deadline)
            first = self._take_numbers(count)
            numbers = range(first, first + count)
            self._send([encode(op, first, name, count), *parts])
            self._open.update(numbers)
            if self._window.add(nbytes, len(self._open)) and not wait:
                while self._process_one():
                    pass
        return numbers

    def wait_kept(self, *numbers: int, timeout: float | None = None) -> None:
        """Returns when these messages are kept. Raises as `publish`, and only the first of several errors.

        If the broker's log is full and no answer comes in time, LogFull names the groups that hold the log.
        """
        what = "a message was not acknowledged"
        with self.wait_until(lambda: self._open.isdisjoint(numbers), timeout, what, publishes=True):
            errors = [error for one in numbers if (error := self._refused.pop(one, None)) is not None]
        if errors:
            raise errors[0]

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all published messages are kept. Raises as `wait_kept`."""
        with self._lock:
            numbers = [*self._open, *self._refused]
        self.wait_kept(*numbers, timeout=timeout)

    def wait_room(self, most: int, timeout: float | None = None) -> None:
        """Returns when fewer than `most` messages are unacknowledged.

        Raises Again, Broken, Closed; `flush` raises refusals.
        """
        whole(most, "most", 1)
        with self.wait_until(lambda: len(self._open) < most, timeout, "too many wait", publishes=True):
            return

    @property
    def unacknowledged(self) -> int:
        """Number of messages without an acknowledgement that this client has processed."""
        return len(self._open)

    def process_answers(self) -> None:
        """Processes the broker's answers that have arrived. Never blocks."""
        with self._lock:
            while self._socket is not None and self._process_one():
                pass
            self._changed.notify_all()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Collects this thread's requests, and sends them as one message at the end, or before a wait.

        It saves work of broker and network for many messages of different topics (`publish(…, wait=False)`),
        and for acknowledgements of several consumers. Payloads must not change before the end of the batch.
        Raises Again, Broken, Closed.
        """
        with self._lock:
            outer = self._batch.begin()
        try:
            yield
        finally:
            if outer:
                with self._lock:
                    words = self._batch.end()
                    if words and self._socket is not None:
                        self._send_now(words)

    # -- consuming ---------------------------------------------------------------------------------------

    def consume(
        self,
        topic: str,
        group: str,
        *,
        window: int = 64,
        begin: str = "new",
        timeout: float | None = None,
    ) -> Consumer:
        """Joins a group of a topic: each message goes to one of its consumers, until one acknowledges it.

        window: unacknowledged messages of this consumer at most. begin: where a new group starts: "new" is
        after the last message, "old" is the first kept message. timeout: seconds after which a message that
        this consumer does not acknowledge goes to another one; None: after its connection's end. Raises the
        broker's refusals.
        """
        with self._lock:
            self._ready(time.monotonic() + self._timeout)
            number = self._take_numbers(1)
            join = join_of(topic, group, window, begin, timeout)
            consumer = Consumer(self, number, join)
            self._send([consumer.join_request()])
            self._consumers[number] = consumer
        try:
            with self.wait_until(lambda: consumer.joined or consumer.failure, None, "no answer to a join"):
                if consumer.failure is not None:
                    raise consumer.failure
        except BaseException:
            consumer.leave()
            raise
        return consumer

    def ready(self, timeout: float | None = None) -> list[Consumer]:
        """Waits for, and returns, the consumers whose `recv_many` does not block now.

        timeout: seconds; None: the client's. Raises Again, Broken, Closed.
        """
        with self.wait_until(
            lambda: any(one.waiting for one in self._consumers.values()), timeout, "no message came"
        ):
            return [one for one in self._consumers.values() if one.waiting]

    # -- for large messages ------------------------------------------------------------------------------

    def begin(self, word: Callable[[int], Sequence[Any]]) -> int:
        """Sends a message's first request, which `word` makes of its number. Returns the number.

        Raises Again, Broken, Closed.
        """
        with self._lock:
            self._ready(time.monotonic() + self._timeout)
            if words := self._batch.taken():
                self._send_now(words)
            number = self._take_numbers(1)
            self._send_now(word(number))
            self._open.add(number)
            return number

    def is_open(self, number: int) -> bool:
        """Whether a message is unacknowledged. With the lock, as `put`."""
        return number in self._open

    def put(self, frames: Sequence[Any]) -> None:
        """Sends a request at once. Raises Again, Broken."""
        self._send_now(frames)

    def give_up(self, number: int, word: Sequence[Any]) -> None:
        """Abandons an unfinished message, and sends `word` to the broker if it is there."""
        with self._lock:
            if number in self._open:
                self._open.discard(number)
                try:
                    self._send_now(word)
                except TransferError:
                    return  # the broker sees the connection's end, or that nothing more arrives

    # -- for consumers -----------------------------------------------------------------------------------

    def send(self, head: Callable[[], bytes]) -> None:
        """Sends a request, which `head` makes with the lock. Raises Again, Broken, Closed."""
        with self._lock:
            self._ready(time.monotonic() + self._timeout)
            self._send([head()])

    def forget(self, consumer: Consumer) -> None:
        """Removes a consumer, so that it gets no more messages."""
        with self._lock:
            self._consumers = {number: one for number, one in self._consumers.items() if one is not consumer}

    @contextmanager
    def wait_until(
        self, done: Callable[[], object], timeout: float | None, what: str, *, publishes: bool = False
    ) -> Iterator[None]:
        """Processes answers until `done()`, then runs the body; both with the lock.

        publishes: whether the caller waits for published messages: then a full log raises LogFull. Raises
        Again, Broken, Closed.
        """
        seconds = self._timeout if timeout is None else patience(timeout, endless=False) or 0.0
        deadline = time.monotonic() + seconds
        with self._lock:
            if (words := self._batch.taken()) and self._socket is not None:
                self._send_now(words)
            while True:
                while self._socket is not None and not self._polling and self._process_one():
                    self._changed.notify_all()
                if done():
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._window.late(f"{what} within {seconds:.3g} s", publishes=publishes)
                if self._polling:
                    self._changed.wait(left)
                else:
                    self._ready(deadline)
                    self._poll(min(left, _CHECK_INTERVAL))
            yield

    # -- the connection, with the lock -------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        """Polls the socket without the lock. Without an event, it checks whether the connection exists."""
        socket = self._socket
        self._polling = True
        self._lock.release()
        try:
            event = socket.poll(max(1, int(seconds * 1000)))
        finally:
            self._lock.acquire()
            self._polling = False
            self._changed.notify_all()
        if not event and socket is self._socket and not socket.peers():
            self._lose()

    def _take_numbers(self, count: int) -> int:
        first, self._number = self._number, self._number + count
        return first

    def _send(self, frames: Sequence[Any]) -> None:
        """Sends a request now, or at the end of `batch`. Raises as `_send_now`."""
        if not self._batch.is_mine:
            self._send_now(frames)
        elif words := self._batch.add(frames):
            self._send_now(words)

    def _send_now(self, frames: Sequence[Any]) -> None:
        """Sends frames. Raises Again if the broker takes nothing, Broken if it has gone."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                if type(frames[0]) is tuple:
                    self._socket.send_frames(frames, transfer.DONTWAIT)
                else:
                    self._socket.send_multipart(frames, transfer.DONTWAIT)
                return
            except Again as error:
                if not self._socket.peers():
                    self._lose()
                    raise Broken(_GONE, hint=_AGAIN) from error
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                self._socket.poll(max(1, int(min(left, _CHECK_INTERVAL) * 1000)), transfer.POLLOUT)

    def _process_one(self) -> bool:
        try:
            frames: list[Any] = self._socket.recv_frames(transfer.DONTWAIT)
        except Again:
            return False
        head = decode(bytes(frames[0].data))
        if head.op is Op.SEVERAL_FROM_BROKER:
            parts = frames[1:]
            for word, its_parts in decode_several(head, len(parts)):
                self._process(word, parts[its_parts])
        else:
            self._process(head, frames[1:])
        return True

    def _process(self, head: Head, parts: list[Any]) -> None:
        if head.op is Op.KEPT:
            self._open.difference_update(range(head.number, head.number + head.amount))
            self._window.answered()
        elif head.op is Op.REFUSED:
            self._refuse(head)
        elif head.op is Op.GRANT:
            self._uploads.granted(head)
        elif head.op is Op.RANGE:
            self.fetches.on_range(head, parts)
        elif (consumer := self._consumers.get(head.number)) is not None:
            answer = consumer.process(head, parts)
            if answer is not None:
                self._send([answer])

    def _refuse(self, head: Head) -> None:
        error = error_of(decode_words(head))
        if head.number == HELD_UP:
            self._window.held_up = error if self._open else None
        elif head.number in self._open:
            self._open.discard(head.number)
            self._refused[head.number] = error
        elif (consumer := self._consumers.get(head.number)) is not None:
            consumer.on_refused(error)

    def _lose(self) -> None:
        """Handles the connection's end."""
        self._socket.close(0)
        self._socket = None
        self._batch.forget()
        error = Broken(_GONE, hint="" if self._reconnect else _AGAIN)
        self._refused.update(dict.fromkeys(self._open, error))
        self._open.clear()
        self._window.answered()
        self.fetches.on_connection_lost()
        for consumer in self._consumers.values():
            consumer.on_connection_lost(error, reconnects=self._reconnect)
        if not self._reconnect:
            self._failure = self._failure or error
        self._changed.notify_all()

    def _ready(self, deadline: float) -> None:
        """Connects, unless there is a connection. Raises Broken, Closed."""
        if self._failure is not None:
            raise unraised(self._failure)
        if self._socket is not None:
            return
        try:
            self._connect(deadline)
        except Again as error:
            raise Broken("the broker is gone, and does not come back") from error
        consumers = list(self._consumers.values())
        self._consumers = {}
        for consumer in consumers:
            number = self._take_numbers(1)
            consumer.renumber(number)
            self._consumers[number] = consumer
            self._send([consumer.join_request()])

    def _connect(self, deadline: float) -> None:
        self._socket = connected_socket(self._context, self._endpoint, deadline, lambda: self._failure)
