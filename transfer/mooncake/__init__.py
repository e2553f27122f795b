"""The API of Mooncake's communicator: `from transfer import ZmqInterface, ZmqSocketType`.

Programs written for `mooncake.engine` run unchanged. Their peers may also be sockets of `transfer`, or any
program that sends plain frames of version 1.
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
