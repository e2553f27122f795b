"""A connection to a spool for requests and answers, and a client that reconnects."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transfer.sockets.connections.no_peer import Warned
from transfer.spool.format.protocol import Ask, raised, to_meta
from transfer.spool.format.run_messages import fits
from transfer.transports.arguments import patience
from transfer.transports.errors import (
    Again,
    Broken,
    Closed,
    HandshakeError,
    ProtocolError,
    TensorMismatch,
    TransferError,
    comes_with,
)
from transfer.transports.handshake.identity import one_time_identity

with comes_with("spool", __name__):
    import msgspec

if TYPE_CHECKING:
    from transfer.spool.format.rows import Array, Arrays

#: seconds between two checks whether the spool is still connected
_LOOK = 0.2
#: seconds for a connection: the socket does not retry a refused one, so the first attempts end soon
_FIRST, _CONNECT = 0.25, 5.0
#: seconds between two attempts, at most
_PAUSE = 1.0
#: the socket does not reconnect by itself: requests would be lost without notice
_NEVER_MS = 86_400_000


class SpoolConnection:
    """One connection to a spool, until it breaks. Any thread may send; one receives.

    warned: the warnings of earlier attempts. Raises Again if no spool answers within `timeout` seconds.
    """

    def __init__(self, endpoint: str, timeout: float, warned: Warned | None = None) -> None:
        import transfer

        self._context = transfer.Context()
        try:
            self._socket = self._context.socket(transfer.DEALER)
            self._socket._links.no_peer.warned = warned or Warned()
            self._socket.identity = one_time_identity()
            self._socket.reconnect_ivl = _NEVER_MS
            self._socket.reconnect_ivl_max = _NEVER_MS
            self._socket.sndtimeo = int(_CONNECT * 1000)
            self._socket.connect(endpoint)
            self._socket.wait_for_peers(1, timeout=timeout)
        except BaseException:
            self._context.destroy(0)
            raise

    def send(self, request: Ask, arrays: Mapping[str, Array]) -> None:
        """Sends a request. Raises Broken, Closed."""
        if not self._socket.peers():
            raise Broken("the spool closed the connection")
        try:
            self._socket.send_tensors(arrays, meta=to_meta(request))
        except Again as error:
            raise Broken("the spool accepts no more requests") from error

    def receive(self, timeout: float | None) -> tuple[Arrays, dict[str, Any]]:
        """Returns the next answer. Raises Again after so many seconds, Broken (the spool is gone), Closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK if deadline is None else min(_LOOK, deadline - time.monotonic())
            self._socket.rcvtimeo = max(0, int(left * 1000))
            try:
                arrays, meta = self._socket.recv_tensors()
            except TensorMismatch:
                self._socket.recv_multipart()
                raise ProtocolError("spool", "the peer is no spool") from None
            except Again:
                if not self._socket.peers():
                    raise Broken("the spool closed the connection") from None
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                continue
            if not isinstance(meta, dict):
                raise ProtocolError("spool", "the peer is no spool")
            return arrays, meta

    def close(self) -> None:
        """Closes the connection. Idempotent; any thread."""
        self._context.destroy(0)


class ReconnectingClient:
    """Sends requests to a spool, and repeats them on a new connection when one breaks. Requests are
    idempotent.

    timeout: seconds within which an answer must arrive. Any thread may call `close`, one thread the rest.
    """

    def __init__(self, endpoint: str, *, timeout: float = 30.0) -> None:
        self.endpoint = endpoint
        self.timeout = patience(timeout, endless=False) or 0.0
        self._line: SpoolConnection | None = None
        self._number = 0
        self._sent = 0  # how often the current request was sent
        self._unanswered: tuple[SpoolConnection, Ask] | None = None
        self._patience = _FIRST
        self._warned = Warned()  # since the last connection
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def ask(
        self,
        request: Ask,
        arrays: Mapping[str, Array] | None = None,
        *,
        timeout: float | None = None,
        resume: bool = False,
    ) -> tuple[Arrays, dict[str, Any]]:
        """Returns the answer to a request.

        resume: if the last request was the same and had no answer in time, waits for its answer. Raises Again
        (no spool answers), Closed, the spool's refusal, and ProtocolError("checksum"): the rows of two
        answers were corrupted in transit.
        """
        seconds = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        pause = 0.05
        self._sent = 0
        doubted = False  # an answer was corrupted in transit
        while True:
            try:
                found, meta = self._ask_once(request, arrays or {}, deadline, resume)
                if not is_intact(found, meta):
                    if doubted:
                        raise changed()
                    doubted = True
                    self.disconnect()
                    continue
            except (Broken, Again) as error:
                if self._line is not None and isinstance(error, Again):
                    # The spool is connected and still works on it.
                    raise Again(
                        f"the spool at {self.endpoint} did not answer within {seconds:g} s"
                    ) from error
                self.disconnect()
                if time.monotonic() + pause >= deadline:
                    raise refused(
                        f"no spool answers at {self.endpoint}; waited {seconds:g} s",
                        "Is `transfer serve` running there, and can this host reach it?",
                        error,
                    ) from error
            else:
                check(meta)  # only here: a refusal may be Broken or Again, too, and is final
                return found, meta
            if self._closing.wait(pause * random.uniform(0.5, 1.0)):
                raise Closed("the link to the spool was closed")
            pause = min(2 * pause, _PAUSE)

    def line(self, timeout: float) -> SpoolConnection:
        """Returns the connection, and makes it if needed. Raises Again, Closed."""
        if self._line is None:
            patience, self._patience = self._patience, min(2 * self._patience, _CONNECT)
            line = SpoolConnection(self.endpoint, min(patience, max(0.01, timeout)), self._warned)
            self._patience, self._warned = _FIRST, Warned()
            with self._lock:
                if self._closing.is_set():
                    line.close()
                    raise Closed("the link to the spool was closed")
                self._line = line
        return self._line

    @property
    def repeated(self) -> bool:
        """Whether the last request was sent more than once: it may have been processed before its answer."""
        return self._sent > 1

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._line is not None

    def disconnect(self) -> None:
        """Closes the current connection; the next request makes a new one."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def close(self) -> None:
        """Closes the client. Idempotent; any thread: a call in another thread raises Closed."""
        self._closing.set()
        self.disconnect()

    def _ask_once(
        self, request: Ask, arrays: Mapping[str, Array], deadline: float, resume: bool
    ) -> tuple[Arrays, dict[str, Any]]:
        line = self.line(deadline - time.monotonic())
        if not (resume and self._unanswered == (line, request)):
            self._number += 1
            self._sent += 1
            line.send(msgspec.structs.replace(request, id=self._number), arrays)
            self._unanswered = line, request
        while True:
            found, meta = line.receive(deadline - time.monotonic())
            if meta.get("id") == self._number:
                self._unanswered = None
                return found, meta


def is_intact(arrays: Arrays, meta: dict[str, Any]) -> bool:
    """Whether the rows of an answer match the spool's checksum."""
    crc = meta.get("crc")
    return not arrays if crc is None else type(crc) is int and fits(arrays, crc)


def changed() -> ProtocolError:
    """Makes the error for rows that were corrupted in transit twice."""
    return ProtocolError(
        "checksum",
        "rows from the spool were corrupted in transit, twice",
        hint="a network card, a proxy or memory is faulty; `checksum` on the socket guards each frame too",
    )


def check(meta: dict[str, Any]) -> None:
    """Raises the spool's refusal, if the answer is one."""
    if "error" in meta:
        raise raised(meta["error"])


def refused(text: str, hint: str, error: BaseException) -> Again:
    """Makes the error that no spool answers, with the reason and the hint of a peer that refused.

    error: of wait_for_peers().
    """
    cause = error.__cause__
    if not isinstance(cause, HandshakeError):
        why = str(cause).partition("\n")[0] if isinstance(cause, TransferError) else ""
        return Again(f"{text} ({why})" if why else text, hint=hint)
    return Again(f"{text} ({cause.reason}: {cause.message})", hint=cause.hint or hint)
