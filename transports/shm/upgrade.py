"""Upgrades a TCP connection to shared memory."""

from __future__ import annotations

import os
import secrets
from typing import Any

from transfer.transports.errors import ProtocolError
from transfer.transports.handshake.upgrade import Made, Upgrade, text_of
from transfer.transports.shm.shm_stream import ShmStream
from transfer.transports.shm.shm_streams import ShmStreams
from transfer.transports.shm.unix_listener import SOCKET_NAME, TOKEN_SIZE, Pair, UnixListener, connect
from transfer.transports.tcp import tune

_NAME = "local.door"


class LocalUpgrade(Upgrade):
    """The accepting side sends its Unix socket's name and a token; the other side connects there with it.

    The TCP connection ends then: the Unix socket reports the peer's end.
    """

    _token = b""
    _pair: Pair | None = None

    def offer(self) -> dict[str, Any]:
        ShmStreams.of(self.around)  # an error is raised here, and not in `made`
        self._token = secrets.token_bytes(TOKEN_SIZE)
        return {"name": self._listener().name, "token": self._token.hex()}

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        try:
            token = bytes.fromhex(text_of(offer, "token"))
        except ValueError as error:
            raise ProtocolError("upgrade", "the token is not hexadecimal") from error
        if len(token) != TOKEN_SIZE:
            raise ProtocolError("upgrade", f"a token of {len(token)} bytes")
        name = text_of(offer, "name", 100)
        if not SOCKET_NAME.fullmatch(name):  # a peer cannot redirect us to another socket of this user
            raise ProtocolError("upgrade", "the name is not one of a Unix listener")
        ShmStreams.of(self.around)
        self._pair = connect(name, token)
        return {}

    def finish(self, answer: dict[str, Any]) -> None:
        self._pair = self._listener().take(self._token)

    def made(self, fd: int, channel: Any = None) -> Made:
        assert self._pair is not None
        connection, control = self._pair
        tune(connection, self.around.options)
        self._token, self._pair = b"", None
        os.close(fd)
        return Made(connection.detach(), carrier=ShmStream(control, self.around))

    def close(self) -> None:
        pair, self._pair = self._pair, None
        for end in pair or ():
            end.close()
        if self._token:
            # Its connection failed, maybe after it had connected here: a killed peer leaves nothing.
            self._listener().forget(self._token)

    def _listener(self) -> UnixListener:
        door = self.around.shared.get(_NAME)
        if door is None:
            door = self.around.shared[_NAME] = UnixListener(self.around.reactor)
        assert isinstance(door, UnixListener)
        return door
