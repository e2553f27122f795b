"""The core in Python: the reference for the compiled one, and its replacement where it is missing.

Same classes, same contract (`transports/core/contract.pyi`), same tests (`tests/core`).

attachment    the common part of both halves of a socket: its streams, its descriptor, its end
checksum      CRC-32C (Castagnoli, RFC 3720 appendix B.4), a byte at a time: correct, and slow
codec         messages to bytes and back, without I/O
flusher       the thread that writes the rest of senders' output: gathered messages, full kernels, credits
frame         one frame as received
inproc_queue  the queues of a pair of streams inside one process
json_check    whether JSON decoders can read a peer's text
message       one message in an out-queue: its unwritten part, and how users' memory in it is copied
outgoing      the sending half of a stream: the out-queue, gathering, and the handling of a full kernel
parts         the threads that have received a part of a message, and the parts that they have not
peer_choice   the choice of a stream for a message, and the wait while none has room
pool          memory: receive buffers that are reused, and users' objects that are held until they are sent
receiving     the receiving half of a socket: the order of streams, and the wait for messages
req_rep_turn  the state of the dialogue of a REQ or a REP, for many threads
slots         equal pieces of memory that two processes share
socket_base   the base of a Socket: the methods that users call
stream        one connection
wake          a flag that a selector can wait for
"""

from transfer.transports.core.pure.checksum import crc32c
from transfer.transports.core.pure.flusher import Flusher
from transfer.transports.core.pure.frame import Frame
from transfer.transports.core.pure.inproc_queue import InprocEnd
from transfer.transports.core.pure.json_check import check_json
from transfer.transports.core.pure.parts import SocketThread, UnfinishedMessages
from transfer.transports.core.pure.pool import HeldBuffer, Lease, Mapping, Pool, Region, address_of, copy_into
from transfer.transports.core.pure.req_rep_turn import Turn
from transfer.transports.core.pure.slots import Slots
from transfer.transports.core.pure.socket_base import SocketBase, poll_sockets
from transfer.transports.core.pure.stream import Stream
from transfer.transports.core.python_tls import TlsChannel, TlsContext, openssl_version, x25519

__all__ = [
    "Flusher",
    "Frame",
    "HeldBuffer",
    "InprocEnd",
    "Lease",
    "Mapping",
    "Pool",
    "SocketThread",
    "Region",
    "Slots",
    "SocketBase",
    "Stream",
    "TlsChannel",
    "TlsContext",
    "Turn",
    "UnfinishedMessages",
    "address_of",
    "check_json",
    "copy_into",
    "crc32c",
    "openssl_version",
    "poll_sockets",
    "x25519",
]
