"""Upgrades a TCP connection to a UCX stream: the two peers exchange their workers' addresses."""

from __future__ import annotations

import base64
import binascii
import secrets
import zlib
from typing import Any

from transfer.transports.base import Capabilities
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import ForkedError, ProtocolError, TransferError
from transfer.transports.gpu_receiving import GpuReceiving
from transfer.transports.handshake.upgrade import Declined, Made, Upgrade, number_of, text_of
from transfer.transports.sizes import LARGE
from transfer.transports.ucx import driver
from transfer.transports.ucx.port import UcxPort
from transfer.transports.ucx.stream import UcxStream

#: the version of this transport's messages over UCX
VERSION = 1
_MAX_ADDRESS = 8 * 1024
_OWN, _GPUS = "ucx", "ucx.gpus"


class UcxUpgrade(Upgrade):
    """See `transfer.transports.handshake.upgrade.Upgrade`. All connections of a socket share a port."""

    _endpoint: driver.UcxEndpoint | None = None
    _theirs = 0
    _ours = 0

    def offer(self) -> dict[str, Any]:
        return self._card()

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        self._connect(offer)
        return self._card()

    def finish(self, answer: dict[str, Any]) -> None:
        self._connect(answer)

    def made(self, fd: int, channel: Any = None) -> Made:
        endpoint, self._endpoint = self._endpoint, None
        assert endpoint is not None
        around = self.around
        control = around.core.Stream(
            fd, int(around.socket_type), around.flusher, around.pool, channel=channel
        )
        stream = UcxStream(self._port(), endpoint, control, self._ours, self._theirs, around)
        return Made(fd, stream)

    def close(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            with self._port():
                endpoint.close()

    # ------------------------------------------------------------------------------------------------

    def _port(self) -> UcxPort:
        """The socket's port, made for its first connection. Raises Declined."""
        port: UcxPort | None = self.around.own.get(_OWN)
        if port is None:
            try:
                watched = self.around.socket_type in (SocketType.PUSH, SocketType.PUB)
                gpus = _gpus_in(self.around.shared)
                gpus.reactor = self.around.reactor
                port = UcxPort(driver.fabric(), self.around.reactor, watched=watched, gpus=gpus)
            except ForkedError as error:
                raise Declined("forked", str(error)) from error
            except TransferError as error:
                raise Declined("ucx", str(error), hint=error.hint) from error
            self.around.own[_OWN] = port
        return port

    def _card(self) -> dict[str, Any]:
        """What the peer needs to connect. The tag is random: no other message is taken for the peer's."""
        port = self._port()
        self._ours = self._ours or secrets.randbits(62) << 2
        address = port.worker.address
        return {
            "version": VERSION,
            "ucx": driver.fabric().version,
            "apart": LARGE,
            "tag": f"{self._ours:016x}",
            "address": base64.b64encode(address).decode(),
            "check": zlib.crc32(address),
        }

    def _connect(self, card: dict[str, Any]) -> None:
        """Raises ProtocolError for an invalid card, Declined where the two do not match."""
        version, apart = number_of(card, "version", 1 << 16), number_of(card, "apart", 1 << 40)
        theirs, ours = text_of(card, "ucx", 64), driver.fabric().version
        if version != VERSION or apart != LARGE:
            raise Declined("version", f"the peer speaks version {version} over UCX, this side {VERSION}")
        if theirs.split(".")[:2] != ours.split(".")[:2]:
            # Addresses of another release may be laid out otherwise, and UCX would not notice.
            raise Declined("version", f"UCX is {theirs} at the peer and {ours} here")
        address = _bytes_of(card)
        try:
            self._theirs = int(text_of(card, "tag", 16), 16)
        except ValueError as error:
            raise ProtocolError("upgrade", "'tag' is not a number") from error
        if self._theirs & 3:
            raise ProtocolError("upgrade", "'tag' has bits that are not the peer's")
        port = self._port()
        try:
            with port, port.lock:
                self._endpoint = port.worker.connect(address)
        except TransferError as error:
            raise Declined("unreachable", str(error), hint=error.hint) from error


def _bytes_of(card: dict[str, Any]) -> bytes:
    """The peer's address, undamaged; only UCX can check its contents. Raises ProtocolError."""
    try:
        address = base64.b64decode(text_of(card, "address", _MAX_ADDRESS * 4 // 3 + 4), validate=True)
    except binascii.Error as error:
        raise ProtocolError("upgrade", "'address' is not base64") from error
    if number_of(card, "check", (1 << 32) - 1) != zlib.crc32(address):
        raise ProtocolError("upgrade", "'address' was damaged")
    return address


def _gpus_in(shared: dict[str, Any]) -> GpuReceiving:
    """Memory on GPUs to receive into, of a context's sockets."""
    found = shared.get(_GPUS) or shared.setdefault(
        _GPUS, GpuReceiving(Capabilities(device_memory=True), lambda *_: None)
    )
    assert isinstance(found, GpuReceiving)
    return found
