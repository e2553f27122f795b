"""Ways to connect: plain TCP, behind TLS and the proof of a token, and by the Unix socket of one host.

With `mutated`, what is agreed on before the first message is mutated too: the rest of a talk then follows a
handshake that went wrong.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.broker.secure_peers import Identities, context_of
from tests.fuzz.mutations import damaged, number
from transfer.transports.address import BASE, LOCAL
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import HandshakeError
from transfer.transports.handshake.choice import Offer
from transfer.transports.handshake.handshake import Handshake
from transfer.transports.handshake.identity import make_hello
from transfer.transports.handshake.upgrade import Made, Upgrade, text_of
from transfer.transports.shm import control_channel
from transfer.transports.shm.unix_listener import TOKEN_SIZE, connect

#: makes a connection at which the talk begins
Dial = Callable[[random.Random], Any]
#: seconds without an answer after which a client goes on
_PATIENCE = 5.0
#: the same where a handshake is mutated, and mostly comes to no end
_BRIEFLY = 0.3


def plain(place: tuple[str, int]) -> Dial:
    """TCP, and nothing said yet."""
    return lambda _: socket.create_connection(place, _PATIENCE)


def encrypted(place: tuple[str, int], identities: Identities) -> Dial:
    """TLS with a good certificate; what is mutated comes inside."""
    context = context_of(identities, identities.client)

    def dial(_: random.Random) -> ssl.SSLSocket:
        peer = socket.create_connection(place, _PATIENCE)
        try:
            return context.wrap_socket(peer, server_hostname=place[0])
        except BaseException:
            peer.close()
            raise

    return dial


def proved(place: tuple[str, int], identities: Identities, kind: SocketType, *, mutated: bool) -> Dial:
    """TLS, hellos and the proof of the token, as they should be, or `mutated`."""
    dial = encrypted(place, identities)
    token = identities.token_file.read_text().strip().encode()
    certificate = ssl.PEM_cert_to_DER_cert(_first(identities.server.certificate))

    def prove(rng: random.Random) -> Any:
        peer = dial(rng)
        handshake = Handshake(make_hello(kind), connecting=True, tokens=(token,))
        handshake.secured(certificate, authenticated=True)
        return _driven(handshake, peer, rng if mutated else None)

    return prove


def _first(path: str) -> str:
    """The certificate of a file that may have those of authorities behind it."""
    end = "-----END CERTIFICATE-----"
    return Path(path).read_text().partition(end)[0] + end + "\n"


def local(place: tuple[str, int], kind: SocketType, *, mutated: bool) -> Dial:
    """From TCP to the Unix socket, and descriptors with announcements are sent on its control channel."""

    def dial(rng: random.Random) -> Any:
        peer = socket.create_connection(place, _PATIENCE)
        entering = _ShmUpgrade(rng if mutated else None)
        offer = Offer((LOCAL, BASE))
        hello = make_hello(kind, offer=offer)
        handshake = Handshake(hello, connecting=True, upgrades=lambda *_: entering)
        try:
            _driven(handshake, peer, rng if mutated else None)
        except BaseException:
            entering.close()
            raise
        if entering.pair is None:
            return peer
        peer.close()
        return Local(*entering.pair, rng)

    return dial


def greeting(name: Callable[[], str]) -> Dial:
    """To the Unix socket itself, with a token that nobody gave out and descriptors of some kind."""

    def dial(rng: random.Random) -> socket.socket:
        address = "\0" + name()
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(_PATIENCE)
        peer.connect(address)
        token = rng.randbytes(rng.choice((TOKEN_SIZE, TOKEN_SIZE, TOKEN_SIZE, 1, 15, 17, 5000)))
        if rng.random() < 0.8:
            _pass(peer, token, rng)
        return peer

    return dial


def unix_listener_name(pid: int) -> str:
    """The abstract name at which a process takes peers of this host."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue  # closed meanwhile
    # Names of other programs may be any bytes.
    lines = Path("/proc/net/unix").read_bytes().decode(errors="replace").split("\n")
    listeners = [line.split() for line in lines[1:]]
    return next(
        words[7][1:]
        for words in listeners
        if len(words) == 8 and words[7].startswith("@transfer-") and words[6] in inodes and words[5] == "01"
    )


class _ShmUpgrade(Upgrade):
    """The connecting side's part, which may use another token than it was given. pair: what it made."""

    connecting = True

    def __init__(self, rng: random.Random | None) -> None:
        self._rng = rng
        self.pair: tuple[socket.socket, socket.socket] | None = None

    def offer(self) -> dict[str, Any]:
        raise AssertionError("it connects")

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        token = bytes.fromhex(text_of(offer, "token"))
        if self._rng is not None and self._rng.random() < 0.3:
            token = self._rng.randbytes(TOKEN_SIZE)
        self.pair = connect(text_of(offer, "name"), token)
        return {}

    def finish(self, answer: dict[str, Any]) -> None:
        raise AssertionError("it connects")

    def made(self, fd: int, channel: Any = None) -> Made:
        raise AssertionError("the client keeps its sockets by itself")

    def close(self) -> None:
        for end in self.pair or ():
            end.close()
        self.pair = None


class Local:
    """The connection for frames; each of its sends may bring announcements on the socket beside it."""

    def __init__(self, connection: socket.socket, passing: socket.socket, rng: random.Random) -> None:
        self._connection, self._passing, self._rng = connection, passing, rng
        connection.settimeout(_PATIENCE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def sendall(self, data: bytes) -> None:
        for _ in range(self._rng.choice((0, 0, 1, 1, 3, 40))):
            try:
                _announce(self._passing, self._rng)
            except OSError:
                break  # it is full, or gone
        self._connection.sendall(data)

    def close(self) -> None:
        self._passing.close()
        self._connection.close()


def _announce(passing: socket.socket, rng: random.Random) -> None:
    kind = rng.randrange(1, 13) if rng.random() < 0.95 else rng.randrange(256)
    size = rng.choice((0, 4096, 65536, 100_000, 1 << 40, number(rng, 64)))
    slot = rng.choice((0, 4096, 65536, number(rng, 64)))
    said = control_channel._LAYOUT.pack(kind, rng.choice((0, 1, 2, number(rng, 32))), size, slot)
    if kind == control_channel.GPU_BLOCK:
        said += rng.randbytes(control_channel.GPU_HANDLES)
    elif kind == control_channel.GPU_PIECES:
        said += number(rng, 64).to_bytes(8, "little") * rng.choice((0, 1, 1, 2, 5, 40))
    if rng.random() < 0.05:
        said = damaged(rng, said)
    passes = kind in (control_channel.SEGMENT, control_channel.BLOCK, control_channel.GPU_PIECES)
    if passes if rng.random() < 0.9 else rng.random() < 0.5:
        _pass(passing, said, rng)
    else:
        passing.send(said, socket.MSG_DONTWAIT)


def _pass(peer: socket.socket, said: bytes, rng: random.Random) -> None:
    """Says this, with descriptors of memory, sealed or not, and of what is no memory."""
    fds = [_descriptor(rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 5, 50)))]
    try:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))
        peer.sendmsg([said], [rights], socket.MSG_DONTWAIT)
    finally:
        for fd in fds:
            os.close(fd)


def _descriptor(rng: random.Random) -> int:
    dial = rng.randrange(6)
    if dial < 3:
        fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, rng.choice((0, 1, 4096, 65536, 100_000)))
        return fd
    if dial == 3:
        return os.open(rng.choice(("/dev/null", "/", __file__)), os.O_RDONLY)
    if dial == 4:
        return os.eventfd(0)
    ours, theirs = socket.socketpair(type=rng.choice((socket.SOCK_SEQPACKET, socket.SOCK_STREAM)))
    ours.close()
    return theirs.detach()


def _driven(handshake: Handshake, peer: Any, mutating: random.Random | None) -> Any:
    """The connection after its handshake; with `mutating`, what goes out is changed now and then, and a
    refusal ends it as well. Raises OSError, TransferError."""
    peer.settimeout(_PATIENCE if mutating is None else _BRIEFLY)
    try:
        handshake.begin()
        while True:
            if handshake.output:
                said = bytes(handshake.output)
                handshake.output.clear()
                if mutating is not None and mutating.random() < 0.4:
                    said = damaged(mutating, said)
                peer.sendall(said)
            if isinstance(handshake.outcome, HandshakeError):
                raise handshake.outcome
            if handshake.outcome is not None:
                return peer
            if not (data := peer.recv(handshake.wants)):
                raise ConnectionResetError("it was refused")
            handshake.feed(data)
    except BaseException:
        if mutating is not None and isinstance(handshake.outcome, HandshakeError):
            return peer
        peer.close()
        raise
