"""The surface of Mooncake's communicator: `from transfer import ZmqInterface, ZmqSocketType`.

Programs written for `mooncake.engine` run unchanged; the peers may be sockets of `transfer` too, or
anybody who speaks plain frames of version 1.
"""

from transfer.interface.codec import DecodedMessage, DecodedTensor, MessageCodec, MessageHeader
from transfer.interface.interface import ZmqInterface
from transfer.interface.socket import ZmqSocket
from transfer.interface.types import ZmqConfig, ZmqSocketOption, ZmqSocketType

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
