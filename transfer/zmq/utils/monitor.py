"""Parses the messages of a monitor's PAIR socket."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, TypedDict, overload

from transfer.transports.errors import UsageError
from transfer.zmq.constants import Event
from transfer.zmq.monitor import EVENT

if TYPE_CHECKING:
    from transfer.zmq import asyncio
    from transfer.zmq.socket import Socket

__all__ = ["parse_monitor_message", "recv_monitor_message"]


class MonitorMessage(TypedDict):
    """The message of a monitor."""

    event: Event
    value: int
    endpoint: bytes


def parse_monitor_message(msg: list[bytes]) -> MonitorMessage:
    """Returns {event, value, endpoint} of a monitor's message. Raises UsageError for another message."""
    if len(msg) != 2 or len(msg[0]) != EVENT.size:
        raise UsageError(f"this is no message of a monitor: {msg!r:.60}")
    event, value = EVENT.unpack(msg[0])
    return {"event": Event(event & 0xFFFF), "value": value, "endpoint": msg[1]}


@overload
def recv_monitor_message(socket: asyncio.Socket, flags: int = ...) -> Awaitable[MonitorMessage]: ...
@overload
def recv_monitor_message(socket: Socket, flags: int = ...) -> MonitorMessage: ...
def recv_monitor_message(socket: Any, flags: int = 0) -> Any:
    """Receives and parses one message; with an asyncio socket the result is awaitable."""
    msg = socket.recv_multipart(flags)
    return _parsed(msg) if isinstance(msg, Awaitable) else parse_monitor_message(msg)


async def _parsed(msg: Awaitable[list[bytes]]) -> MonitorMessage:
    return parse_monitor_message(await msg)
