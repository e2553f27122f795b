"""Certificates for tests of TLS, and channels whose handshake is done."""

from __future__ import annotations

import importlib
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from transfer.certificates import Authority, Issued

PROTOCOL = "test/1"
CORES = ("pure", "native")
CROSSED = [(one, other) for one in CORES for other in CORES]
#: of a record, before it is encrypted
RECORD = 16 * 1024


@dataclass(frozen=True)
class TlsPki:
    """An authority, and a certificate of it for 127.0.0.1."""

    authority: Authority
    issued: Issued

    @classmethod
    def made(cls, folder: Path) -> TlsPki:
        authority = Authority(folder)
        return cls(authority, authority.issue())

    def context(self, core: ModuleType, *, server: bool, **changed: Any) -> Any:
        """Mutual TLS, unless changed."""
        asked = {
            "certificate": self.issued.certificate,
            "key": self.issued.key,
            "authorities": self.authority.path,
            "clients": "required" if server else "none",
            "protocols": (PROTOCOL,),
        }
        return core.TlsContext(server=server, **asked | changed)

    def channels(
        self, near: socket.socket, far: socket.socket, client: ModuleType, server: ModuleType
    ) -> tuple[Any, Any]:
        """(the client's on `near`, the server's on `far`), the handshake done."""
        for end in (near, far):
            end.setblocking(False)
        ours = client.TlsChannel(self.context(client, server=False), near.fileno(), "127.0.0.1")
        theirs = server.TlsChannel(self.context(server, server=True), far.fileno())
        shake(ours, theirs)
        return ours, theirs

    def wrapped(self, near: socket.socket, far: socket.socket, core: ModuleType) -> tuple[ssl.SSLSocket, Any]:
        """(Python's own end over `far`, the client's channel on `near`), the handshake done."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issued.certificate, self.issued.key)
        context.num_tickets = 0
        near.setblocking(False)
        far.setblocking(False)
        theirs = context.wrap_socket(far, server_side=True, do_handshake_on_connect=False)
        ours = core.TlsChannel(self.context(core, server=False, protocols=()), near.fileno(), "127.0.0.1")

        def answered() -> None:
            with suppress(ssl.SSLWantReadError):
                theirs.do_handshake()

        shake(ours, between=answered)
        soon(lambda: _is_answered(theirs))
        return theirs, ours


def _is_answered(end: ssl.SSLSocket) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def shake(*channels: Any, between: Callable[[], object] = lambda: None) -> None:
    """The handshake, to its end. between: called between the turns."""

    def done() -> bool:
        between()
        ended = [channel.handshake() for channel in channels]  # each has its turn
        return all(ended)

    soon(done)


def soon(condition: Callable[[], object]) -> None:
    """As `eventually`, without a pause, and in this thread's own time: the other side is in this thread."""
    deadline = time.thread_time() + 30
    while not condition():
        assert time.thread_time() < deadline, "it did not happen in time"


def core_of(name: str) -> ModuleType:
    return importlib.import_module(f"transfer.transports.core.{name}")


def is_readable(end: socket.socket) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))


def drained(channel: Any, end: socket.socket, room: int = 1 << 16) -> tuple[bytes, bool]:
    """What comes while the descriptor is readable, one read each time; and whether it has ended."""
    data = bytearray()
    memory = bytearray(room)
    while is_readable(end):
        try:
            count = channel.recv_into(memory)
        except BlockingIOError:
            continue
        if not count:
            return bytes(data), True
        data += memory[:count]
    return bytes(data), False


def sent(channel: Any, data: Any) -> int:
    """Without ever waiting: what was taken of it."""
    try:
        taken: int = channel.send(data)
    except BlockingIOError:
        return 0
    return taken


def exchanged(here: tuple[Any, Any], there: tuple[Any, Any], data: Any, room: int = 1 << 16) -> bytes:
    """All of `data` from one to the other, in one thread, with both ends' (socket, channel)."""
    arrived = bytearray()
    rest = memoryview(data)

    def moved() -> bool:
        nonlocal rest
        rest = rest[sent(here[1], rest) :]
        here[1].flush()
        part, ended = drained(there[1], there[0], room)
        arrived.extend(part)
        assert not ended
        return not rest and len(arrived) >= len(data) and not here[1].unsent

    soon(moved)
    return bytes(arrived)
