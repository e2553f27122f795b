"""The compiled core. `transports/core` decides whether it is used; importing it needs the build.

allocations      counts the allocations of this process' Python, for measurements
attachment       the streams of a socket, from attaching to detaching or loss
borrowed_memory  users' memory in a link's queue, which is copied before its owner may change it
checksum         CRC-32C, for the records of the log
connection       a link as Python sees it: its counters and limits, and why it ended
cuda             memory, copies, events and handles of a GPU, for any thread
dlpack           DLPack's capsules, given and read
draining         a send of large memory stays until the kernel has it, as long as that makes progress
events           the descriptors that a socket's threads sleep on, made when one sleeps
fetched_frames   payloads that the peer announced, and that a Stream READs by RDMA
filling          memory that is sent while it is filled, from its beginning on
flusher          the native thread as Python sees it, and the release of finished Python objects
gpu_mapping      memory of other processes' GPUs, mapped here: allocations and exported pieces
gpu_payload      a payload in memory of a GPU, as a frame's data
header           parses the first bytes of a frame: every length is checked here, before memory is allocated
incoming         the receiving half of a Stream
inproc_calls     the common send and receive of a socket with peers in this process
inproc_queue     the queues of a pair of streams inside one process
json_check       checks whether JSON decoders can read a peer's text, without the GIL
kernel_writes    a connection's out-queue, and the system calls that write it, without the GIL
known_tensors    headers of tensors that were sent before
large_frames     the large frame that a Stream receives
libcuda          the CUDA driver, looked up when memory of a GPU is first used
libibverbs       libibverbs, looked up when the rdma transport is first used
message          one outgoing message: from OutFrames to segments in a link's queue, and back again
openssl          OpenSSL, looked up when TLS is first used: the same library that Python's `ssl` has loaded
outgoing         the sending half of a Stream
parts            messages of several parts, and the threads that have read a part of one
peer_choice      chooses the peer, that is its stream, that gets a message, and waits while none has room
polling          the wait for the first of several sockets that has a message
pool             memory of the compiled core: pool, lease, held buffer, frame
reading          the fair reader over the streams of a socket
receiving        one receive at a time, which sleeps until a message comes, and counts what it returns
req_rep_turn     the state of the dialogue of a REQ or REP
ring             a connection's bytes by RDMA, without the GIL: as a socket's
ring_channel     Python sets a ring up, connects it, and passes it to a Stream
ring_requests    what a ring posts to its queue pair, and what completes there
slots            equal pieces of memory that two processes share
small_messages   small plain messages: copied into a queue, and written at once or gathered
socket_base      SocketBase: the methods that users call
stream           one connection as Python sees it, from opening to closing
thread           the flusher: a thread that never takes the GIL
tls              TLS 1.3 between a connection's queues and its descriptor, by OpenSSL, without the GIL
tls_channel      TLS as Python sees it: it sets it up, runs the handshake, and passes it to a Stream
verbs            devices and regions of libibverbs
x25519           two sides agree on a secret by their keys, by OpenSSL

Stream and SocketBase are classes in layers, one file each; each derives from the one above it:

    a stream, one for a connection             a socket's core, whose streams it holds
    Connection   connection.pyx                Events       events.pyx
    Outgoing     outgoing.pyx                  Sending      peer_choice.pyx
    Large        large_frames.pyx              Reading      reading.pyx
    Fetched      fetched_frames.pyx            Receiving    receiving.pyx
    Incoming     incoming.pyx                  Attachments  attachment.pyx
    Stream       stream.pyx                    Parts        parts.pyx
                                               SocketBase   socket_base.pyx
"""

from transfer.transports.core.native.checksum import crc32c
from transfer.transports.core.native.flusher import Flusher
from transfer.transports.core.native.inproc_queue import InprocEnd
from transfer.transports.core.native.json_check import check_json
from transfer.transports.core.native.openssl import openssl_version
from transfer.transports.core.native.parts import SocketThread, UnfinishedMessages
from transfer.transports.core.native.polling import poll_sockets
from transfer.transports.core.native.pool import (
    Frame,
    HeldBuffer,
    Lease,
    Mapping,
    Pool,
    Region,
    address_of,
    copy_into,
)
from transfer.transports.core.native.req_rep_turn import Turn
from transfer.transports.core.native.slots import Slots
from transfer.transports.core.native.socket_base import SocketBase
from transfer.transports.core.native.stream import Stream
from transfer.transports.core.native.tls_channel import TlsChannel, TlsContext
from transfer.transports.core.native.x25519 import x25519

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
