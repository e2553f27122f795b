"""From TCP to the same-host way."""

from __future__ import annotations

import os
import secrets
from typing import Any

from transfer.transports.errors import ProtocolError
from transfer.transports.handshake.upgrade import Made, Upgrade, text_of
from transfer.transports.shm.shm_stream import ShmStream
from transfer.transports.shm.shm_streams import ShmStreams
from transfer.transports.shm.unix_listener import DOOR, TOKEN_SIZE, Pair, UnixListener, enter
from transfer.transports.tcp import tune

_NAME = "local.door"


class LocalUpgrade(Upgrade):
    """The accepting side tells its Unix socket's name and a token; the other one comes in by it.

    The TCP connection ends then: a Unix socket tells of the peer's end by itself.
    """

    _token = b""
    _pair: Pair | None = None

    def offer(self) -> dict[str, Any]:
        ShmStreams.of(self.around)  # fails here, if it must, and not in `made`
        self._token = secrets.token_bytes(TOKEN_SIZE)
        return {"name": self._door().name, "token": self._token.hex()}

    def accept(self, offer: dict[str, Any]) -> dict[str, Any]:
        try:
            token = bytes.fromhex(text_of(offer, "token"))
        except ValueError as error:
            raise ProtocolError("upgrade", "the token is not hexadecimal") from error
        if len(token) != TOKEN_SIZE:
            raise ProtocolError("upgrade", f"a token of {len(token)} bytes")
        name = text_of(offer, "name", 100)
        if not DOOR.fullmatch(name):  # whoever it is, it sends us to no other socket of this user
            raise ProtocolError("upgrade", "the name is not that of a door")
        ShmStreams.of(self.around)
        self._pair = enter(name, token)
        return {}

    def finish(self, answer: dict[str, Any]) -> None:
        self._pair = self._door().take(self._token)

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
            # Its connection failed, maybe after it had come in: a peer that was killed leaves nothing.
            self._door().forget(self._token)

    def _door(self) -> UnixListener:
        door = self.around.shared.get(_NAME)
        if door is None:
            door = self.around.shared[_NAME] = UnixListener(self.around.reactor)
        assert isinstance(door, UnixListener)
        return door
