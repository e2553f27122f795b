"""The connection of a TTP client: sends frames and heartbeats, receives frames and answers."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from transfer.broker.clients.connection import checked_address, connected, has_ended
from transfer.broker.clients.tls import closed, failure, security_for
from transfer.broker.clients.ttp_reader import TtpFrame, TtpReader
from transfer.broker.protocols.ttp import ALPN, WANTED, TtpKind, TtpLimits, decode_error, encode_head
from transfer.transports.arguments import patience
from transfer.transports.errors import (
    Again,
    Broken,
    Closed,
    LogFull,
    PeerError,
    TransferError,
    UsageError,
    unraised,
)

if TYPE_CHECKING:
    from transfer.transports.core.contract import TlsChannel
    from transfer.transports.security.settings import Security

#: intervals without an answer to a heartbeat, after which the broker counts as gone
_MISSED = 3
#: errors of the broker that are kept if no call waits for them
_COMPLAINTS = 64
#: seconds for which a report of the broker that it blocks publishers is valid; it repeats it each second
_LATELY = 5.0
#: seconds that one system call waits; a time-out may be infinity
_LONGEST = 3600.0
NOTHING = memoryview(b"")


class TtpClientConnection:
    """One connection. Not thread-safe.

    timeout: seconds that it waits without progress. heartbeat: seconds without sending after which it sends a
    heartbeat. complaints, security: see TtpClient. Raises the errors of TtpClient.
    """

    def __init__(
        self,
        host: str,
        port: int,
        limits: TtpLimits,
        *,
        timeout: float,
        heartbeat: float,
        security: Security | None = None,
    ) -> None:
        host, port = self._address = checked_address(host, port)
        self.timeout = timeout = patience(timeout, endless=False) or 0.0
        self.complaints: deque[TransferError] = deque(maxlen=_COMPLAINTS)
        self._every = patience(heartbeat, "heartbeat", endless=False) or 0.0
        self._reader = TtpReader(limits)
        self._inbox: deque[TtpFrame] = deque()
        self._awaited: dict[int, TtpFrame | None] = {}  # answers, by the stream id of the request
        self._held_up: LogFull | None = None  # why the broker blocks publishers, and when it reported that
        self._held_up_at = 0.0
        self._owed = False  # the broker has requested a heartbeat
        self._echoes = False  # the broker answers heartbeats
        self._failure: TransferError | None = None
        self._peer = f"{host}:{port}"
        self._security = security_for(self._peer, security)
        self._connect(timeout)
        self._begun = False  # a frame was sent, at least in part
        self._received = False  # any byte was received
        self._sent = time.monotonic()
        self._unanswered: float | None = None  # when the oldest unanswered heartbeat was sent

    def _connect(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self._socket, self._channel = connected(self._address, deadline, self._security, (ALPN,))
        #: sends and receives bytes
        self._stream: socket.socket | TlsChannel = self._channel or self._socket

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        if self._failure is None and self._channel is not None:
            self._channel.close()
        self._failure = self._failure or Closed("the client is closed")
        self._socket.close()
        self._inbox.clear()

    @property
    def usable(self) -> bool:
        """Whether the connection has not ended."""
        return self._failure is None

    def expect(self, number: int) -> None:
        """Announces a wait for the answer to the frame with this stream id.

        Call `answer` or `forget` then.
        """
        self._awaited[number] = None

    def forget(self, number: int) -> None:
        """Drops the answer to the frame with this stream id. Idempotent."""
        self._awaited.pop(number, None)

    def next(self, timeout: float) -> TtpFrame:
        """Returns the next PUBLISH, META or CHUNK."""
        deadline = time.monotonic() + timeout
        if timeout <= 0 and not self._inbox and self.usable:
            self._read()
        while not self._inbox:
            self._send_due_heartbeat()
            self._wait(deadline, select.POLLIN)
        return self._inbox.popleft()

    def answer(self, number: int) -> None:
        """Waits for the broker's answer. Raises its refusal."""
        deadline = time.monotonic() + self.timeout
        while (answer := self._awaited[number]) is None:
            self._send_due_heartbeat()
            self._wait_for_broker(deadline, select.POLLIN)
        del self._awaited[number]
        if answer.kind == TtpKind.ERROR:
            raise _error_of(answer)

    def send(self, head: bytes, data: memoryview = NOTHING) -> None:
        """Sends a whole frame. While the broker takes nothing, it reads what the broker sends."""
        if self._failure is not None:
            raise unraised(self._failure)
        if not self._begun and not self._received:
            self._replace_if_ended()
        left = [memoryview(head), data] if data else [memoryview(head)]
        deadline = time.monotonic() + self.timeout
        sent, untouched = 0, True
        try:
            while left or self._unsent:
                before, untouched = untouched, False  # after an interrupt, it is unknown what was sent
                sent = self._send_some(left)
                untouched = before and not sent
                if sent:
                    deadline = time.monotonic() + self.timeout
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if left:
                    left[0] = left[0][sent:]
                if left or self._unsent:
                    self._wait_for_broker(deadline, select.POLLIN | select.POLLOUT)
        except BaseException:
            if not untouched:
                self._fail(Broken("a frame was half sent when it was interrupted"))
            raise
        self._sent = time.monotonic()

    def _replace_if_ended(self) -> None:
        """Connects again if the broker has closed the connection. Raises Broken, Again.

        The broker may close connections that have sent nothing, in favour of others. So nothing is lost.
        """
        if has_ended(self._socket, 0):
            self._socket.close()
            try:
                self._connect(self.timeout)
            except TransferError as error:
                raise self._fail(error) from None
        self._begun = True

    def _send_some(self, buffers: list[memoryview]) -> int:
        try:
            if self._channel is not None and not self._channel.flush():
                return 0
            return self._stream.sendmsg(buffers) if buffers else 0
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._read()  # the broker may have sent a reason
            raise self._fail(failure(error, self._peer, self._channel, received=self._received)) from error

    @property
    def _unsent(self) -> bool:
        """Whether TLS has encrypted bytes that the kernel has not taken."""
        return self._channel is not None and self._channel.unsent > 0

    def _send_due_heartbeat(self) -> None:
        """Sends a heartbeat if one is due or requested. Raises Broken if several stay unanswered."""
        now = time.monotonic()
        if self._is_late(now):
            self._read()  # the answer may have arrived: the caller may not have read for long
            if self._is_late(now):
                raise self._fail(Broken(f"the broker was silent for {_MISSED} heartbeats"))
        if self._owed or now - self._sent >= self._every:
            self._owed = False
            self.send(encode_head(TtpKind.HEARTBEAT))
            if self._unanswered is None:
                self._unanswered = now

    def _is_late(self, now: float) -> bool:
        since = self._unanswered
        return self._echoes and since is not None and now - since >= _MISSED * self._every

    def _wait(self, deadline: float, events: int) -> None:
        """Waits for an event of the socket, or until a heartbeat is due, and reads. Raises Again."""
        if self._failure is not None:
            raise unraised(self._failure)
        now = time.monotonic()
        if now >= deadline:
            raise Again("nothing came in time" if events == select.POLLIN else "the broker takes nothing")
        poll = select.poll()
        poll.register(self._socket, events)
        until = deadline if events & select.POLLOUT else min(deadline, self._sent + self._every)
        ready = poll.poll(max(1.0, (until - now) * 1000))
        if ready and ready[0][1] & ~select.POLLOUT:
            self._read()

    def _read(self) -> None:
        """Reads once, and sorts the frames. Raises Broken, ProtocolError."""
        try:
            more = True
            while more:
                if not self._reader.read(self._stream):
                    raise closed(self._peer, self._channel, received=self._received)
                self._received, self._unanswered = True, None
                while (frame := self._reader.take()) is not None:
                    self._sort(frame)
                # decrypted bytes that TLS buffers do not make the descriptor readable
                more = self._channel is not None and self._channel.pending > 0
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise self._fail(failure(error, self._peer, self._channel, received=self._received)) from error
        except TransferError as error:
            raise self._fail(error) from (self.complaints[-1] if self.complaints else None)

    def _sort(self, frame: TtpFrame) -> None:
        if frame.kind in (TtpKind.PUBLISH, TtpKind.META, TtpKind.CHUNK) or _breaks_off(frame):
            self._inbox.append(frame)
        elif frame.kind == TtpKind.HEARTBEAT:
            self._owed = self._owed or bool(frame.flags & WANTED)
            self._echoes = True
        elif frame.stream_id in self._awaited:
            self._awaited[frame.stream_id], self._held_up = frame, None
        elif frame.kind == TtpKind.ERROR:
            error = _error_of(frame)
            if not frame.stream_id and isinstance(error, LogFull):
                self._held_up, self._held_up_at = error, time.monotonic()
            else:
                self.complaints.append(error)

    def _wait_for_broker(self, deadline: float, events: int) -> None:
        """Waits as `_wait`, for publishers: raises LogFull if the broker has just reported a full log."""
        try:
            self._wait(deadline, events)
        except Again as error:
            if self._held_up is None or time.monotonic() - self._held_up_at > _LATELY:
                raise
            hint = "the message may still be kept; let consumers acknowledge"
            raise LogFull(f"{error}: {self._held_up}", hint=hint) from None

    def _fail(self, error: TransferError) -> TransferError:
        """Closes the connection because of an error, and returns its first error."""
        if self._failure is None:
            self._failure = error
            self._socket.close()
        return self._failure


def _breaks_off(frame: TtpFrame) -> bool:
    """Whether the frame ends an unfinished stream."""
    return frame.kind == TtpKind.ERROR and decode_error(bytes(frame.data))[0] == "broken_off"


def _error_of(frame: TtpFrame) -> TransferError:
    code, message = decode_error(bytes(frame.data))
    if code in ("usage", "topic"):
        return UsageError(message)
    return LogFull(message) if code == "full" else PeerError(f"the broker reports {code}: {message}")
