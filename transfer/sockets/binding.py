"""The result of `bind` and `connect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from transfer.transports.arguments import wrong

if TYPE_CHECKING:
    from transfer.sockets.socket import Socket

SocketT = TypeVar("SocketT", bound="Socket", covariant=True)


class Binding(Generic[SocketT]):
    """The result of `bind` and `connect`: a context manager that ends the endpoint."""

    __slots__ = ("addr", "kind", "socket")

    def __init__(self, socket: SocketT, kind: str, addr: str) -> None:
        self.socket = socket
        self.kind = kind
        self.addr = addr

    def __enter__(self) -> SocketT:
        return self.socket

    def __exit__(self, *exc: object) -> None:
        if not self.socket.closed:
            (self.socket.unbind if self.kind == "bind" else self.socket.disconnect)(self.addr)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.addr}>"


def endpoint_text(addr: str | bytes) -> str:
    """The endpoint as text. Raises ArgumentError."""
    if isinstance(addr, str):
        return addr
    if isinstance(addr, bytes):
        return addr.decode(errors="replace")
    raise wrong("an endpoint", addr, 'text, for instance "tcp://127.0.0.1:5555"')
