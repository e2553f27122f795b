"""A disk whose cache loses its content when the power fails, for a virtual machine: an NBD server.

Protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md, its fixed newstyle handshake,
READ, WRITE and FLUSH. FUA is not offered: clients send FLUSH behind a write instead.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

SECTOR = 512
#: seconds for a connection to end whose client was killed, and for flushes of an emulated machine
_TIMEOUT = 120.0
_OPTION = b"IHAVEOPT"
_EXPORT_NAME, _ABORT, _GO = 1, 2, 7
_ACK, _INFO, _UNSUPPORTED = 1, 3, (1 << 31) + 1
_READ, _WRITE, _DISCONNECT, _FLUSH = range(4)
_HAS_FLAGS, _HAS_FLUSH = 1, 4
_INVALID = 22  # EINVAL
_REQUEST = struct.Struct(">IHHQQI")


class CachedDisk:
    """A file, and in memory what was written to it since the last flush.

    A sector is written whole or not at all. What was not flushed may be lost or not, sector by sector, in any
    order: that is all that a disk with a volatile cache promises.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.truncate(self._fd, nbytes)
        self._versions: dict[int, list[bytes]] = {}  # of sectors, since the last flush

    def read(self, at: int, count: int) -> bytes:
        data = bytearray(os.pread(self._fd, count, at))
        for number in range(at // SECTOR, (at + count) // SECTOR):
            if versions := self._versions.get(number):
                begin = number * SECTOR - at
                data[begin : begin + SECTOR] = versions[-1]
        return bytes(data)

    def write(self, at: int, data: bytes) -> None:
        for begin in range(0, len(data), SECTOR):
            versions = self._versions.setdefault((at + begin) // SECTOR, [])
            versions.append(data[begin : begin + SECTOR])

    def flush(self) -> None:
        for number, versions in self._versions.items():
            os.pwrite(self._fd, versions[-1], number * SECTOR)
        self._versions.clear()

    def cut(self, chance: random.Random, kept: float) -> int:
        """The power fails: each unflushed sector has one of its versions with the probability `kept`, else
        what it had when the disk was last flushed. Returns how many have not their last version."""
        lost = 0
        for number, versions in self._versions.items():
            left = chance.randrange(len(versions)) + 1 if chance.random() < kept else 0
            if left:
                os.pwrite(self._fd, versions[left - 1], number * SECTOR)
            lost += left < len(versions)
        self._versions.clear()
        return lost

    def close(self) -> None:
        os.close(self._fd)


class Server:
    """Serves one disk on a Unix socket, to one client after the other; ended with its with-statement."""

    def __init__(self, disk: CachedDisk, path: Path) -> None:
        self._disk = disk
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._connection: socket.socket | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._flushes: int | None = None  # the last of them is not done
        self._stalled = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def client(self) -> int | None:
        """The process that is connected."""
        if self._connection is None or self._idle.is_set():
            return None
        found = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", found)[0])

    def stall(self, flushes: int) -> None:
        """Returns when the client has asked for so many flushes from now on. The last of them is not done,
        and the disk answers nothing more until another client comes. Without it a cut would lose little:
        most writes are followed by a flush at once."""
        self._stalled.clear()
        self._flushes = flushes
        assert self._stalled.wait(_TIMEOUT), "the client does not flush"

    def wait_idle(self) -> None:
        """Returns when the client has gone."""
        assert self._idle.wait(_TIMEOUT), "the client is still connected"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in (self._listener, self._connection):
            if one is not None and one.fileno() >= 0:
                one.shutdown(socket.SHUT_RDWR)
        self._thread.join(_TIMEOUT)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                self._connection, _ = self._listener.accept()
            except OSError:
                return  # it is shut down
            self._flushes = None
            self._idle.clear()
            with self._connection as connection:
                try:
                    if self._negotiate(connection):
                        while self._answer(connection):
                            pass
                except OSError:
                    pass  # the client has gone, in the middle of a request or of an answer
                finally:
                    self._idle.set()

    def _negotiate(self, connection: socket.socket) -> bool:
        """Whether the client wants the disk."""
        export = struct.pack(">QH", self._disk.nbytes, _HAS_FLAGS | _HAS_FLUSH)
        connection.sendall(b"NBDMAGIC" + _OPTION + struct.pack(">H", 3))  # fixed newstyle, no zeroes
        _exactly(connection, 4)
        while True:
            magic, option, nbytes = struct.unpack(">8sII", _exactly(connection, 16))
            assert magic == _OPTION, magic
            _exactly(connection, nbytes)
            if option == _EXPORT_NAME:
                connection.sendall(export)
                return True
            if option == _GO:
                _reply(connection, option, _INFO, struct.pack(">H", 0) + export)
                _reply(connection, option, _INFO, struct.pack(">HIII", 3, SECTOR, 4096, 32 << 20))
            known = option in (_GO, _ABORT)
            _reply(connection, option, _ACK if known else _UNSUPPORTED)
            if known:
                return option == _GO

    def _answer(self, connection: socket.socket) -> bool:
        """One request; False when it was the last."""
        _, _, kind, handle, at, count = _REQUEST.unpack(_exactly(connection, _REQUEST.size))
        data, error = b"", 0
        if kind == _READ:
            data = self._disk.read(at, count)
        elif kind == _WRITE:
            self._disk.write(at, _exactly(connection, count))
        elif kind == _FLUSH:
            if self._flushes is not None:
                self._flushes -= 1
                if not self._flushes:
                    self._stalled.set()
                    while connection.recv(1 << 16):
                        pass
                    return False
            self._disk.flush()
        elif kind == _DISCONNECT:
            return False
        else:
            error = _INVALID
        connection.sendall(struct.pack(">IIQ", 0x67446698, error, handle) + data)
        return True


def _reply(connection: socket.socket, option: int, kind: int, data: bytes = b"") -> None:
    connection.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Raises ConnectionError when the client goes before it has sent so many bytes."""
    data = bytearray()
    while len(data) < count:
        some = connection.recv(count - len(data))
        if not some:
            raise ConnectionResetError("the client has gone")
        data += some
    return bytes(data)
