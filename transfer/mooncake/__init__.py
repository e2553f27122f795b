"""The API of Mooncake's communicator: `from transfer import ZmqInterface, ZmqSocketType`.

Programs written for `mooncake.engine` run unchanged. Their peers may also be sockets of `transfer`, or any
program that sends plain frames of version 1.

channel    one socket as the Mooncake API needs it: sends frames with topics, receives messages with sources
codec      MessageCodec: the bytes of one message, for programs that read and write a connection themselves
dispatch   calls a socket's callbacks in a separate thread, one at a time, whatever they raise
endpoints  endpoints as in Mooncake programs: the scheme is optional
futures    the calls that end in `_async`: their futures belong to an event loop, and no thread waits for them
interface  ZmqInterface: the API that programs for Mooncake's communicator call
message    the forms of a message: bytes, text, JSON, an object, parts
pool       slots for a REQ's open requests: so many for each peer, assigned in the order of the requests
receive    the receiving calls of a socket: callbacks, and polling
replies    a REP's open requests: any number up to a limit, each with a separate reply
requests   a REQ's requests: many may be open at once; each gets its reply, whichever thread reads it
send       the sending calls of a socket
settings   the state of a socket in the Mooncake API: its endpoints and options
socket     one socket of the Mooncake API: all calls of `ZmqInterface`, without the id
types      types and settings of the Mooncake API: socket types, options, configuration
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.mooncake.codec import DecodedMessage, DecodedTensor, MessageCodec, MessageHeader
    from transfer.mooncake.interface import ZmqInterface
    from transfer.mooncake.socket import ZmqSocket
    from transfer.mooncake.types import ZmqConfig, ZmqSocketOption, ZmqSocketType

__all__ = [
    "DecodedMessage",
    "DecodedTensor",
    "MessageCodec",
    "MessageHeader",
    "ZmqConfig",
    "ZmqInterface",
    "ZmqSocket",
    "ZmqSocketOption",
    "ZmqSocketType",
]

exports(
    __name__,
    {
        "codec": "DecodedMessage DecodedTensor MessageCodec MessageHeader",
        "interface": "ZmqInterface",
        "socket": "ZmqSocket",
        "types": "ZmqConfig ZmqSocketOption ZmqSocketType",
    },
)
