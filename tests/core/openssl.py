"""OpenSSL itself as a peer, driven by ctypes: it can ask for new keys, as Python's cannot."""

from __future__ import annotations

import _ssl
import ctypes
import socket
from typing import Any

_WANT = (2, 3)
_REQUESTED = 1
_SET_HOST_NAME = 55


def _library() -> Any:
    library = ctypes.CDLL(_ssl.__file__)  # its functions are found in what it depends on
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    for name in ("SSL_CTX_free", "SSL_free", "SSL_connect", "SSL_do_handshake"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    library.SSL_CTX_new.argtypes = [ctypes.c_void_p]
    library.SSL_new.argtypes = [ctypes.c_void_p]
    library.SSL_set_fd.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_get_error.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
    for name in ("SSL_read", "SSL_write"):
        getattr(library, name).argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    return library


class Client:
    """A client over a socket, which it makes non-blocking. It asks for nobody's certificate."""

    def __init__(self, connection: socket.socket) -> None:
        self._library = _library()
        self._socket = connection
        connection.setblocking(False)
        self._context = self._library.SSL_CTX_new(self._library.TLS_client_method())
        self._ssl = self._library.SSL_new(self._context)
        self._library.SSL_set_fd(self._ssl, connection.fileno())

    def _ask(self, name: str, *arguments: Any) -> int | None:
        """The answer; None where it has to wait."""
        answer = int(getattr(self._library, name)(self._ssl, *arguments))
        if answer > 0:
            return answer
        why = self._library.SSL_get_error(self._ssl, answer)
        if why in _WANT:
            return None
        raise OSError(f"{name} fails with {why}")

    def handshake(self) -> bool:
        return self._ask("SSL_connect") is not None

    def send(self, data: bytes) -> int:
        return self._ask("SSL_write", data, len(data)) or 0

    def recv(self, size: int) -> bytes:
        room = ctypes.create_string_buffer(size)
        count = self._ask("SSL_read", room, size) or 0
        return room.raw[:count]

    def new_keys(self, asked: bool = True) -> bool:
        """Changes its keys, and asks the peer to do so too. False: the kernel is full, call it again."""
        self._library.SSL_key_update(self._ssl, _REQUESTED if asked else 0)
        return self._ask("SSL_do_handshake") is not None

    def close(self) -> None:
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)
        self._socket.close()
