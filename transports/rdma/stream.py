"""One connection by rdma: a queue pair for the messages, a TCP connection for control frames."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transfer.transports.core import Frame, fork
from transfer.transports.errors import Broken, Closed, ProtocolError, RegistrationError, TransferError
from transfer.transports.prefixes import Prefixes, Subscribable
from transfer.transports.rdma import control_messages
from transfer.transports.rdma.driver import QueuePair
from transfer.transports.rdma.failures import FLUSHED, NO_ANSWER
from transfer.transports.rdma.incoming import RdmaIncoming
from transfer.transports.rdma.outgoing import RdmaOutgoing
from transfer.transports.rdma.port import SEND, GivenUp, RdmaPort

#: seconds between two reports of consumed messages
_REPORT_INTERVAL = 0.02


def _ignore(why: GivenUp) -> None:
    """The default callback, which does nothing."""


class VerbsStream(Subscribable, RdmaOutgoing, RdmaIncoming):
    """A foreign stream of the core over a connected queue pair. Any thread may call.

    control: a `core.Stream` over the TCP connection, which belongs to this one; control frames travel
    there, and its end is the end of the peer. give_up: called (under the lock) when a new
    connection by rdma would fail too. pair: connected. granted: eager buffers that the peer
    posted for us. name: of the peer, for logs.
    """

    def __init__(
        self,
        port: RdmaPort,
        pair: QueuePair,
        control: Any,
        *,
        reactor: Any,
        socket_type: int,
        granted: int,
        max_message: int,
        name: str = "the peer",
        give_up: Callable[[GivenUp], None] = _ignore,
    ) -> None:
        self.control = control
        self.name = name
        self.device = str(port.domain.route)
        self.number = pair.number
        self.wait_fds = (port.fd,)
        fork.watch()
        self._generation = fork.generation
        self._closed = False
        self._give_up = give_up
        self._reactor = reactor
        self._watching: Any = None
        self._report_timer: Any = None
        self._prefixes = Prefixes()
        with port.lock:
            self._begin_sending(port, pair, granted, socket_type)
            self._begin_receiving(port, pair, max_message)
            port.join(self)
        self._run_after()

    @property
    def fd(self) -> int:
        """The TCP connection."""
        return int(self.control.fd)

    def fileno(self) -> int:
        return self.fd

    @property
    def alive(self) -> bool:
        """The stream still uses completions."""
        return self.broken is None

    @property
    def registers_device_memory(self) -> bool:
        """True: neither side computes checksums of payloads."""
        return not self.checksum

    # -- Stream --------------------------------------------------------------------------------

    def control_ready(self) -> list[Frame]:
        """Reads the TCP connection and returns the control frames of the core. Raises Broken,
        ProtocolError."""
        if fork.generation != self._generation:
            raise fork.refuse()
        others: list[Frame] = []
        try:
            while (frames := self.control.receive()) is not None:
                self.last_received_ns = time.monotonic_ns()
                for frame in frames:
                    data = frame.bytes
                    if control_messages.is_ours(data):
                        self._on_control_message(control_messages.decode(data))
                    else:
                        others.append(frame)
        except (Broken, ProtocolError) as error:
            if others and isinstance(error, Broken):
                # Reported before the end, which the next call finds again. The owner counts at the end what
                # the peer had not confirmed, and the last credit may be among these frames.
                self._run_after()
                return others
            with self._lock:
                if self.broken is None:
                    self._port.progress()  # takes what it sent before its end
                    self._break(error)
            self._run_after()
            raise
        self._run_after()
        return others

    def _look_after(self) -> None:
        """In the reactor, while announcements are open: queries them, and ends with a silent peer."""
        with self._lock:
            self._watching = None
            if self.broken is None and self._open:
                try:
                    self._check_announcements(time.monotonic())
                    self._watch()
                except Broken as error:
                    self._break(error)
        self._run_after()

    def _report_late(self) -> None:
        """In the reactor: reports what was consumed just before the receiver went to sleep."""
        with self._lock:
            self._report_timer = None
            if self.broken is None:
                self._report_consumed()

    def close(self) -> int:
        if fork.generation != self._generation:
            self._closed = True
            return 0  # the messages are the parent's
        with self._lock:
            if self._closed:
                return 0
            self._closed = True
            error = Broken("this end closed the connection")
            self._break(error)
            lost, self.queued, self.queued_bytes = self.queued, 0, 0
            for message in self._unposted:
                message.frames = []
                if message.released is not None:
                    self._port.after.append(lambda released=message.released: released(error))  # type: ignore[misc]
            self._unposted = []
            self._inbox.clear()
        self._run_after()
        self.control.close()
        return lost

    # -- for the port, under its lock ------------------------------------------------------------

    def end(self, error: TransferError) -> None:
        """The port fails."""
        self._break(error)

    def completed(self, kind: int, which: int, status: int) -> None:
        """A send or a READ of this side completed."""
        if status == FLUSHED:
            self._break(Broken(f"the connection to {self.name} failed"))
        elif kind == SEND:
            if status == NO_ANSWER and not (self._acknowledged or self._grants.arrived):
                # The TCP connection lives, or its end would have been seen long before.
                hint = "are both in one network? MC_RDMA_DEVICES and MC_GID_INDEX choose others"
                text = f"the device of {self.name} did not answer"
                self._give_up(GivenUp(time.monotonic(), "unreachable", text, hint))
            self._send_completed(which, status)
        else:
            self._read_completed(which, status)

    # -- under the lock ------------------------------------------------------------------------

    def _on_control_message(self, message: control_messages.RdmaControlMessage) -> None:
        with self._lock:
            if self.broken is not None:
                return
            if message.word == control_messages.Word.GRANT:
                self._granted(message.numbers[0])
            elif message.word == control_messages.Word.DONE:
                self._done(message.numbers)
            elif message.word == control_messages.Word.ASK:
                self._port.progress()  # the announcement may still be there
                self._answer_query(message.numbers[0])
            else:
                self._held(message.numbers[0])

    def _break(self, error: TransferError) -> None:
        """Ends the connection: closes the queue pair first, then frees all memory that it could access.

        Completions that were not polled are lost with a queue pair, as are their receive buffers: they are
        taken before.
        """
        if self.broken is not None:
            return
        if isinstance(error, RegistrationError):
            text = str(error).split("\n", 1)[0]
            self._give_up(GivenUp(time.monotonic(), error.reason, text, error.hint))
        self.broken = error
        self._pair.fail()
        self._port.leave(self)
        self._pair.close()
        self._end_sending(error)
        self._end_receiving()
        for timer in (self._watching, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._wake(self.on_readable)
        self._wake(self.on_writable)

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = self._call_later(self.rendezvous_timeout / 2, self._look_after)

    def _report_soon(self) -> None:
        if self._report_timer is None:
            self._report_timer = self._call_later(_REPORT_INTERVAL, self._report_late)

    def _call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        try:
            return self._reactor.call_later(delay, callback)
        except Closed:
            return None  # the context ends, and all its streams

    def _send_control(self, data: bytes) -> None:
        try:
            self.control.send([control_messages.frame(data)], force=True)
        except (Broken, ProtocolError):
            pass  # the reactor finds its end too, and reports it

    def _wake(self, callback: Callable[[], None] | None) -> None:
        if callback is not None:
            self._port.after.append(callback)

    # ------------------------------------------------------------------------------------------

    def _run_after(self) -> None:
        self._port.run_after()

    def _is_broken(self) -> TransferError:
        error = Broken(f"the connection to {self.name} has ended")
        error.__cause__ = self.broken
        return error
