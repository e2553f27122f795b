"""The base of a Socket: the methods that users call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.transports.arguments import flags_of, sequence, whole
from transfer.transports.core.pure.codec import LZ4, MORE, TENSOR, TOPIC
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.frame import Frame
from transfer.transports.core.pure.parts import SocketThread, UnfinishedMessages
from transfer.transports.core.pure.peer_choice import NONE, Sending, plain
from transfer.transports.core.pure.pool import Pool
from transfer.transports.core.pure.receiving import Receiving
from transfer.transports.core.pure.req_rep_turn import Turn
from transfer.transports.errors import Again, NotSupported, TransferError

if TYPE_CHECKING:
    pass

DONTWAIT = 1
_RCVMORE = 13  # ZeroMQ's number
_TRIES = range(100)
#: flags of a frame that `recv` does not return by itself
_NOT_PLAIN = TENSOR | TOPIC | MORE | LZ4


def poll_sockets(entries: list[tuple[Any, int]], timeout: float | None) -> None:
    """See the contract: here Python polls them anyway."""


class SocketBase(Sending, Receiving):
    """Distributes messages over streams and reads them fairly. See `SocketBase` in core/contract.pyi."""

    def __init__(
        self, socket_type: int, send_mode: int, receive_mode: int, flusher: Flusher, pool: Pool
    ) -> None:
        super().__init__(socket_type, send_mode, receive_mode, flusher, pool)
        self.send_timeout = self.receive_timeout = -1
        self._general_send = self._general_recv = False
        # Python runs for each message here anyway, so the pattern handles all of them.
        self._lockstep = False
        self._lent: dict[str, Any] = {}
        self._turn: Turn | None = None
        self._unfinished = UnfinishedMessages()
        self._routes: dict[bytes, Any] | None = None
        self._with_identity = self._keeps_properties = False
        self._frame_class: type[Frame] | None = None

    def send(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        flags = flags_of(flags)
        if self._frame_class is not None and (track or type(data) not in (bytes, bytearray)):
            return self._send_object(data, flags, copy, track)
        return self._send_one(data, flags, copy, track)

    def _send_one(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        if (
            flags & ~DONTWAIT
            or track
            or self._general_send
            or self._socket_thread().begun
            or self._foreign
            or self._send_mode == NONE
        ):
            return self._send_general(data, flags, copy, track)
        frames, size = plain(data)
        hold = not copy and size >= self.copy_threshold
        self._distribute(frames, 0 if flags else self.send_timeout, None, None, hold, None)
        return None

    def recv(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        made = self._recv_part(flags_of(flags), copy, track)
        return made if copy or self._frame_class is None else self._framed(made, self._frame_class)

    def _framed(self, frame: Frame, kind: type[Frame]) -> Frame:
        if type(frame) is kind:
            return frame
        made = kind.__new__(kind)
        data = frame.data
        Frame.__init__(
            made,
            bytearray(data) if type(data) is bytes else data,
            flags=frame.flags & ~MORE | (MORE if self._has_rest() else 0),
            sequence=frame.sequence,
            socket_type=frame.socket_type,
            topic=frame.topic,
            meta=frame.meta,
        )
        return made

    def _has_rest(self) -> bool:
        return bool(self._socket_thread().rest)

    def _getsockopt(self, option: int) -> Any:
        if option == _RCVMORE and not self.closed:
            return int(self._has_rest())
        return self._get_option(option)

    def _get_option(self, option: int) -> Any:
        raise NotSupported("this socket has no options of ZeroMQ")

    def _recv_part(self, flags: int, copy: bool, track: bool) -> Any:
        general = self._general_recv or (self._keeps_properties and not copy)
        if general or self._receive_mode == NONE or self._socket_thread().rest:
            return self._recv_general(flags, copy, track)
        stream, frames = self._recv_message(0 if flags & DONTWAIT else self.receive_timeout)
        if self._keeps_properties:  # a later part may be asked for them
            self._socket_thread().stream = stream
        frame = frames[0]
        if not copy and not frame.flags & _NOT_PLAIN:
            return frame
        try:
            made = self._deliver(stream, frames, flags, copy) if frame.flags & _NOT_PLAIN else frame.bytes
        except TransferError:
            raise
        except BaseException:  # of a signal's handler
            given = [(stream, frames)]
            self._take_back(given)
            raise
        return self._recv_general(flags, copy, track) if made is NotImplemented else made

    def send_multipart(self, msg_parts: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return self._send_multipart(msg_parts, flags_of(flags), copy, track)

    def send_many(self, messages: Any, flags: int = 0) -> int:
        flags, done = flags_of(flags), 0
        for data in sequence(messages, "the messages", "bytes; send() sends one"):
            try:
                self._send_one(data, flags, True, False)
            except Again:
                if done:
                    break
                raise
            done += 1
        return done

    def recv_many(self, most: int, flags: int = 0) -> list[Any]:
        whole(most, "most", 1)
        parts = SocketBase.recv_multipart(self, flags)
        return [parts[0] if len(parts) == 1 else parts]

    def recv_multipart(self, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        return self._recv_multipart(flags_of(flags), copy)

    def _send_known(self, tensor: Any, flags: int) -> bool:
        return False

    def _note_known(self, tensor: Any, flags: int, header: bytes) -> None:
        """Does nothing: this core would save no time."""

    # -- hooks

    def _send_general(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        """Every send that is not plain."""

    def _recv_general(self, flags: int, copy: bool, track: bool) -> Any:
        """Every recv when the fast one is disabled."""

    def _send_multipart(self, msg_parts: Any, flags: int, copy: bool, track: bool) -> Any:
        """Every send of several parts."""

    def _recv_multipart(self, flags: int, copy: bool) -> Any:
        """Every receive of several parts."""

    def _send_object(self, data: Any, flags: int, copy: bool, track: bool) -> Any:
        """Every send that the subclass converts."""

    def _give_back(self, here: SocketThread, error: BaseException) -> None:
        given: list[Any] = [here.given]
        here.given = None
        for _ in _TRIES:  # more handlers may raise meanwhile
            try:
                if given == [None] or isinstance(error, TransferError):
                    break
                self._take_back(given)
                break
            except BaseException:  # noqa: BLE001 - the first error is raised
                if not given:
                    break

    def _socket_thread(self) -> SocketThread:
        """What is kept of the calling thread."""
        return SocketThread(self._unfinished)

    def _take_back(self, given: list[tuple[Any, list[Frame]]]) -> None:
        """A call was interrupted between its message and its caller."""
        self._give_again(*given.pop())

    def _deliver(self, stream: Any, frames: list[Frame], flags: int, copy: bool) -> Any:
        """A message that is not one plain frame; recv returns the result."""
