"""The TCP ports of abtp. libzmq has neither TLS nor a limit on connections, so its sockets listen in a folder
of this user's, and bytes go to and fro between them and the connections that were let in."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transfer.broker.line import Line
from transports.address import format_host, parse
from transports.descriptors import is_reserved
from transports.errors import InternalError, ProtocolError
from transports.pending import PENDING
from transports.tcp import bind_address

if TYPE_CHECKING:
    from transfer.broker.doors import Doors
    from transfer.broker.lines import Lines

#: bytes that wait for one end before no more are read from the other
_MOST = 4 << 20
#: seconds that an end has to take what came before the other one ended
_LAST_WORDS = 10.0
#: bytes that the name of a Unix socket may have
_LONGEST = 100
#: bytes of ZeroMQ's greeting; then each peer says what socket it is
_GREETING = 64


class PrivateFolder:
    """Where only this user gets to. Raises InternalError."""

    def __init__(self, beside: Path) -> None:
        self.path = beside / "abtp"
        try:
            if len(os.fsencode(self.path.absolute())) > _LONGEST - 10:
                self.path = Path(tempfile.mkdtemp(prefix="transfer-abtp-"))
            else:
                shutil.rmtree(self.path, ignore_errors=True)
                self.path.mkdir(mode=0o700)
        except OSError as error:
            raise InternalError(f"no folder for abtp's sockets can be made: {error}") from error

    def endpoint(self, name: str) -> str:
        """Of a ZeroMQ socket there."""
        return f"ipc://{self.path.absolute() / name}"

    def close(self) -> None:
        """With what is in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)


class Relay:
    """Connections from the outside to one ZeroMQ socket. On the broker's loop. endpoint: where that is.

    connections: that are open. ends: of all of them, on both sides.
    """

    def __init__(self, lines: Lines, endpoint: str) -> None:
        self._lines = lines
        self._path = endpoint.removeprefix("ipc://")
        self.connections = 0
        self.ends: set[_End] = set()

    def connected(self, connection: socket.socket, peer: str) -> Line:
        """Takes a connection that was let in, in non-blocking mode."""
        outer = _Outer(self, self._lines, connection, peer)
        self.connections += 1
        return outer

    def reach(self, outer: _Outer) -> None:
        """Connects it to the socket inside. Raises ProtocolError."""
        try:
            inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise _busy(error.strerror or str(error)) from error
        if is_reserved(inside.fileno()):
            inside.close()
            PENDING.make_room()
            raise _busy("the last descriptors are kept for files")
        try:
            inside.connect(self._path)
        except OSError as error:
            inside.close()
            raise _busy(error.strerror or str(error)) from error
        outer.other = inner = _End(self, self._lines, inside, outer.peer)
        inner.other = outer

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for end in list(self.ends):
            end.close("the broker ends")


def _busy(why: str) -> ProtocolError:
    return ProtocolError("busy", f"abtp takes no connection now: {why}")


class _End(Line):
    """One end: what it reads is written to the other one."""

    def __init__(self, relay: Relay, lines: Lines, connection: socket.socket, peer: str) -> None:
        self.other: _End | None = None
        self._relay = relay
        self._stopped = False  # it reads no more until the other end has written
        self._last = False  # the other end has closed: it ends when all is written
        super().__init__(lines, connection, peer)
        relay.ends.add(self)

    def cut(self, data: memoryview) -> int:
        """See Line."""
        other = self.other
        assert other is not None
        other.write(data)
        if other.queued >= _MOST and not self._stopped and not self.closed:
            self._stopped = True
            self.pause()
        return len(data)

    def relieved(self) -> None:
        """See Line."""
        if self._last:
            self.close("the other end has closed")
        elif self.other is not None and self.other._stopped:
            self.other._stopped = False
            self.other.resume()

    def refuse(self, error: ProtocolError) -> None:
        """See Line."""
        self.close(str(error))

    def lost(self, reason: str) -> None:
        """See Line. The other end ends when it has written what came."""
        self._relay.ends.discard(self)
        other, self.other = self.other, None
        if other is None or other.closed:
            return
        other._last, other.other = True, None
        other.pause()
        if not other.queued:
            other.close(reason)
        else:
            self._loop.call_later(_LAST_WORDS, other.close, reason)


class _Outer(_End):
    """The end of a peer. Nothing inside knows of it before its first bytes: ZeroMQ has no side that waits."""

    def __init__(self, relay: Relay, lines: Lines, connection: socket.socket, peer: str) -> None:
        self._missing = _GREETING  # bytes of its greeting
        super().__init__(relay, lines, connection, peer)

    def cut(self, data: memoryview) -> int:
        """See Line."""
        if self.other is None:
            self._relay.reach(self)
        return super().cut(data)

    def has_begun(self, cut: int) -> bool:
        """See Line. The rest of its handshake libzmq waits for, and not for long."""
        self._missing -= cut
        return self._missing < 0

    def lost(self, reason: str) -> None:
        """See Line."""
        self._relay.connections -= 1
        super().lost(reason)


def relayed(doors: Doors, lines: Lines, where: Mapping[str, str], inside: Mapping[str, str]) -> Relays:
    """What listens before abtp's sockets. where: their places by name, as others see them; inside: where they
    really listen. Raises AddressInUse, AddressError, SecurityError."""
    relays: list[Relay] = []
    endpoints: dict[str, str] = {}
    for name, endpoint in where.items():
        address = parse(endpoint)
        relay = Relay(lines, inside[name])
        relays.append(relay)
        entry = doors.entry("abtp", relay.connected, partial(getattr, relay, "connections"))
        host, port = bind_address(address)[1][:2]
        listener = doors.listen(f"abtp {name}", str(host), int(port), entry)
        endpoints[name] = f"tcp://{format_host(listener.host)}:{listener.port}"
    return Relays(endpoints, relays)


class Relays(NamedTuple):
    """endpoints: where the relays listen, by name."""

    endpoints: dict[str, str]
    relays: list[Relay]

    def close(self) -> None:
        """Ends all connections. Idempotent."""
        for relay in self.relays:
            relay.close()
