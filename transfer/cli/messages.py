"""The commands that send and receive: push, pull, pub, sub, req, rep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from transfer.cli.inputs import InputMessage, Inputs
from transfer.cli.outputs import ReceivedMessage, Writer
from transfer.cli.progress import Progress
from transfer.sockets.monitor import Event, EventKind, Monitor
from transfer.tensors import TensorMethods
from transfer.transports.errors import Again, Broken, TensorMismatch, TransferError, UsageError

if TYPE_CHECKING:
    from transfer.cli.options import Where
    from transfer.sockets.socket import Socket

#: seconds that a command waits at its end for unsent messages, if there is no --timeout
LINGER = 30.0
#: seconds between two checks for confirmations; they arrive every 20 ms
CONFIRM_POLL = 0.01
#: seconds within which the end of a connection is reported
LOSS = 2.0


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
            socket.sndtimeo = socket.rcvtimeo = -1 if where.timeout is None else round(where.timeout * 1000)
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
        monitor = socket.get_monitor() if confirm else None
        progress.begin()
        try:
            for message in _limited(inputs, count):
                send(socket, message, topic)
                progress.add(message.nbytes)
                if interval:
                    time.sleep(interval)
            if monitor is not None:
                _wait_confirmed(socket, monitor, where.timeout)
        except Again as error:
            if monitor is None:
                raise
            raise Again(f"{_problem(error)}; {_unconfirmed(socket, monitor)}", hint=error.hint) from error
        lost = socket.close(linger=round((LINGER if where.timeout is None else where.timeout) * 1000))
        if lost:
            raise Broken(
                f"{lost} messages were not sent", hint="give a longer --timeout, or check the receiver"
            )


def send(socket: Socket, message: InputMessage, topic: str | None = None) -> None:
    """Sends one message as its kind requires. Bytes with a topic become two parts, as in pyzmq."""
    if message.kind == "tensor":
        socket.send_tensor(message.payload, topic=topic)
    elif message.kind == "tensors":
        socket.send_tensors(message.payload, meta=message.meta, topic=topic)
    elif topic is not None:
        socket.send_multipart([topic.encode(), message.payload])
    else:
        socket.send(message.payload)


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


def _unconfirmed(socket: Socket, monitor: Monitor) -> str:
    """How many of the messages that were sent are confirmed. Closes the socket."""
    sent = socket.messages_sent
    left = sum(peer.unconfirmed for peer in socket.peers())
    left += sum(event.count for event in _events(monitor) if event.kind is EventKind.UNCONFIRMED)
    left += socket.close(linger=0)  # what waits for a peer
    return f"{sent - left} of {sent} messages are confirmed"


def _wait_confirmed(socket: Socket, monitor: Monitor, timeout: float | None) -> None:
    """Waits until the peers have confirmed that they consumed everything. Raises Again, Broken."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ended = 0.0
    while True:
        left = sum(peer.queued + peer.unconfirmed for peer in socket.peers())
        # What a lost peer had not confirmed is not among those of `peers` any more.
        if lost := sum(event.count for event in _events(monitor) if event.kind is EventKind.UNCONFIRMED):
            raise Broken(
                f"{lost} messages are unconfirmed: their receiver is gone, and may have consumed them"
            )
        if not left:
            if sum(peer.sent for peer in socket.peers()) >= socket.messages_sent:
                return
            # A peer has ended. What it had not confirmed is reported a moment later.
            ended = ended or time.monotonic()
            if time.monotonic() > ended + LOSS:
                return
        if deadline is not None and time.monotonic() > deadline:
            raise Again("the receivers have not taken everything", hint="give a longer --timeout")
        time.sleep(CONFIRM_POLL)


def _events(monitor: Monitor) -> Iterator[Event]:
    """Those that have happened."""
    with suppress(Again):
        while True:
            yield monitor.recv(timeout=0)
