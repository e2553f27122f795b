"""The commands that send and receive: push, pull, pub, sub, req, rep."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transfer.cli.inputs import InputMessage, Inputs
from transfer.cli.outputs import ReceivedMessage, Writer
from transfer.cli.progress import Progress
from transfer.tensors import TensorMethods
from transfer.transports.errors import Again, Broken, TensorMismatch, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.cli.options import Where
    from transfer.sockets.socket import Socket
    from transfer.sockets.tracker import Tracker

#: seconds that a command waits at its end for unsent messages, if there is no --timeout
LINGER = 30.0


@contextmanager
def open_socket(kind: str, where: Where, report: Any = None, **options: Any) -> Iterator[Socket]:
    """Opens a socket of this type with its endpoints, and closes it at the end with its context.

    report: called with each bound endpoint, which has the real port. After an error or Ctrl-C it does not
    wait for unsent messages.
    """
    if not where.bind and not where.connect:
        raise UsageError("no endpoint", hint="give --connect or --bind, for instance tcp://127.0.0.1:5555")
    import transfer

    with transfer.Context() as context:
        socket = context.socket(getattr(transfer, kind))
        try:
            if where.timeout is not None:
                socket.sndtimeo = socket.rcvtimeo = wait = round(where.timeout * 1000)
                # With the policy `require`, `connect` itself waits.
                socket.handshake_ivl = max(1, min(wait, socket.handshake_ivl))
            else:
                socket.sndtimeo = socket.rcvtimeo = -1
            for name, value in options.items():
                setattr(socket, name, value)
            for endpoint in where.bind or ():
                socket.bind(endpoint)
                if report is not None:
                    report(socket.last_endpoint)
            for registry in where.announce or ():
                socket.announce(registry)
            for endpoint in where.connect or ():
                socket.connect(endpoint)
            yield socket
        finally:
            socket.close(linger=0)


def send_all(
    kind: str,
    where: Where,
    inputs: Inputs,
    progress: Progress,
    *,
    topic: str | None = None,
    wait: int = 1,
    interval: float = 0.0,
    confirm: bool = False,
    report: Any = None,
    count: int | None = None,
) -> None:
    """PUSH or PUB: sends all inputs, then waits until they are sent.

    wait: peers that have to connect first. confirm: waits until the peers have consumed everything.
    Raises Again if no peer took a message in time, Broken if messages were not sent or not consumed.
    """
    with open_socket(kind, where, report) as socket:
        socket.wait_for_peers(wait, timeout=where.timeout)
        confirmations = _Confirmations() if confirm else None
        progress.begin()
        try:
            for message in _limited(inputs, count):
                tracker = send(socket, message, topic, track=confirm)
                progress.add(message.nbytes)
                if confirmations is not None:
                    confirmations.add(tracker)
                if interval:
                    time.sleep(interval)
            if confirmations is not None:
                confirmations.wait(where.timeout)
        except (Again, Broken) as error:
            if confirmations is None:
                raise
            socket.close(linger=0)
            kind_of_error = Again if isinstance(error, Again) else Broken
            raise kind_of_error(f"{_problem(error)}; {confirmations.summary()}", hint=error.hint) from error
        lost = socket.close(linger=round((LINGER if where.timeout is None else where.timeout) * 1000))
        if lost:
            raise Broken(
                f"{lost} messages were not sent", hint="give a longer --timeout, or check the receiver"
            )


def send(socket: Socket, message: InputMessage, topic: str | None = None, track: bool = False) -> Any:
    """Sends one message as its kind requires. Bytes with a topic become two parts, as in pyzmq. Returns its
    Tracker if `track`."""
    if message.kind == "tensor":
        return socket.send_tensor(message.payload, topic=topic, track=track)
    if message.kind == "tensors":
        return socket.send_tensors(message.payload, meta=message.meta, topic=topic, track=track)
    if topic is not None:
        return socket.send_multipart([topic.encode(), message.payload], track=track)
    return socket.send(message.payload, track=track)


def receive_all(
    kind: str,
    where: Where,
    writer: Writer,
    progress: Progress,
    *,
    count: int | None = None,
    topics: Iterable[str] | None = None,
    report: Any = None,
) -> None:
    """PULL or SUB: writes each message, until `count` or the time-out, which raises Again."""
    with open_socket(kind, where, report) as socket:
        for topic in topics or ():
            socket.subscribe(topic)
        while count is None or progress.messages < count:
            message = receive(socket)
            writer.write(message)
            progress.add(message.nbytes)


def ask_all(
    where: Where, inputs: Inputs, writer: Writer, progress: Progress, *, count: int | None = None
) -> None:
    """REQ: sends each input, and writes its reply."""
    with open_socket("REQ", where) as socket:
        for message in _limited(inputs, count):
            send(socket, message)
            reply = receive(socket)
            writer.write(reply)
            progress.add(reply.nbytes)


def answer_all(
    where: Where,
    replies: list[InputMessage],
    writer: Writer | None,
    progress: Progress,
    *,
    count: int | None = None,
    report: Any = None,
) -> None:
    """REP: answers each request with the next of `replies` in turn, or echoes it."""
    with open_socket("REP", where, report) as socket:
        while count is None or progress.messages < count:
            request = receive(socket)
            if writer is not None:
                writer.write(request)
            if replies:
                send(socket, replies[progress.messages % len(replies)])
            else:
                _echo(socket, request)
            progress.add(request.nbytes)
        # The socket has to send the last reply before it closes.
        socket.close(linger=round(LINGER * 1000))


def receive(socket: Socket) -> ReceivedMessage:
    """Returns the next message, of any kind. Raises Again after the socket's time-out.

    It tries to receive a tensor first: a message that is none stays unread. The topic of bytes is their first
    part, as in pyzmq.
    """
    seen = _Topics(socket)
    try:
        tensor = seen.recv_tensor()
        return ReceivedMessage("tensor", tensor, tensor.nbytes, seen.topic)
    except TensorMismatch:
        pass
    try:
        tensors, meta = seen.recv_tensors()
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        return ReceivedMessage("tensors", tensors, nbytes, seen.topic, meta)
    except TensorMismatch:
        pass
    parts = socket.recv_multipart()
    return ReceivedMessage("bytes", parts, sum(len(part) for part in parts))


class _Topics(TensorMethods):
    """Receives tensors from a socket, and keeps the topic of the last one, which tensors do not have."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.topic: bytes | None = None

    def _receive_valid(self, receive: Any, *arguments: Any) -> Any:
        return self._socket._receive_valid(receive, *arguments)

    def _recv_frames(self, flags: int, sink: Any) -> list[Any]:
        frames = self._socket._recv_frames(flags, sink)
        self.topic = frames[0].topic
        return frames

    def _unreceive(self, frames: list[Any]) -> None:
        self._socket._unreceive(frames)

    def _want_gpu(self, uuid: bytes, index: int) -> None:
        self._socket._want_gpu(uuid, index)


def _echo(socket: Socket, request: ReceivedMessage) -> None:
    if request.kind == "tensor":
        socket.send_tensor(request.payload)
    elif request.kind == "tensors":
        socket.send_tensors(request.payload, meta=request.meta)
    else:
        socket.send_multipart(request.payload)


def _limited(inputs: Inputs, count: int | None) -> Iterator[InputMessage]:
    for number, message in enumerate(inputs):
        if number == count:
            return
        yield message


def _problem(error: TransferError) -> str:
    return str(error).partition("\n")[0]


class _Confirmations:
    """Which of the messages that a socket has sent their receivers have consumed."""

    def __init__(self) -> None:
        self._open: deque[Tracker] = deque()
        self._confirmed = self._lost = 0

    def add(self, tracker: Tracker) -> None:
        self._open.append(tracker)
        while self._open and self._open[0].confirmed:
            self._open.popleft()
            self._confirmed += 1

    def wait(self, timeout: float | None) -> None:
        """Waits until all are confirmed. timeout: seconds without one. Raises Again, Broken."""
        while self._open:
            try:
                self._open[0].wait_confirmed(timeout)
            except Again:
                text = "the receivers have not taken everything"
                raise Again(text, hint="give a longer --timeout") from None
            except Broken:
                self._lost += 1
            else:
                self._confirmed += 1
            self._open.popleft()
        if self._lost:
            raise Broken("a receiver has ended without confirming, and may have taken more")

    def summary(self) -> str:
        """What is confirmed, when the socket is closed."""
        confirmed = self._confirmed + sum(tracker.confirmed for tracker in self._open)
        return f"{confirmed} of {self._confirmed + self._lost + len(self._open)} messages are confirmed"
