"""The surface of Mooncake's communicator: `from transfer import ZmqInterface, ZmqSocketType`.

Programs written for `mooncake.engine` run unchanged; the peers may be sockets of `transfer` too, or
anybody who speaks plain frames of version 1.
"""

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
