"""The option `sndhwm_bytes` of pyzmq's sockets: only SNDHWM makes them drop messages, as in libzmq."""

from __future__ import annotations

from typing import Any

from transfer.zmq.constants import SocketType
from transfer.zmq.endpoints import Base

#: types that drop messages when a queue is full; others wait, and lose nothing by a limit of bytes
_DROPPING = frozenset({SocketType.PUB, SocketType.XPUB, SocketType.ROUTER})


class ByteLimit:
    """A descriptor: the limit that the program set. Without one: none for sockets that drop messages and for
    SNDHWM = 0, else the default of the context."""

    def __get__(self, sock: Any, owner: type | None = None) -> Any:
        if sock is None:
            return self
        given = Base.sndhwm_bytes.__get__(sock)
        if given is not None:
            return given
        return 0 if sock.type in _DROPPING or not sock.sndhwm else sock.context.defaults.sndhwm_bytes

    def __set__(self, sock: Any, value: int) -> None:
        Base.sndhwm_bytes.__set__(sock, value)
