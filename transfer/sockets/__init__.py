"""Sockets: what users send and receive with, and their connections.

adaptive_limit   the byte limit of a peer's queue, adapted to the peer's throughput
async_poller     waits for several sockets and plain descriptors without blocking the event loop
attributes       rejects unknown attributes: `s.rcvtimo = 3` is an error and not a setting without effect
binding          the result of `bind` and `connect`
callback         callback mode: a function receives a socket's messages, one at a time
compression      compression of messages, decided for each frame: only where it pays
connections      the connections of one socket, and what happens to their messages
context          owns the reactor thread, the flusher and the buffer pool, and makes sockets
defaults         default values of the options of sockets: of `transfer`, and of pyzmq for `transfer.zmq`
directories      name services by the scheme of an endpoint: each is loaded when it is first used
drain            closes connections without losing sent data
dump             the state of a context as plain data
gpu_peers        what peers can do with memory of GPUs, and on which GPUs payloads are taken
lockstep         several threads on one REQ or REP: one thread at a time sends, one at a time receives
made_once        a part of an object that is made when it is first used
monitor          the events of a socket's connections, as a stream
options          the options of a socket: attributes, and numbers for `setsockopt`
parts            the parts of messages: how they are made of frames, texts and JSON, and frames of them
peer             the state of one peer of a socket, and of one endpoint that it bound or connected
peer_preference  chooses the peer that gets a message first, for sockets with `balance`
poller           waits for several sockets and plain descriptors at once, as pyzmq's does
readiness        tasks of an event loop that wait until a socket may have something to receive
registration     memory that is registered once and sent many times: the result of `Context.register`
sender           sends whole messages by the pattern: envelopes, compression, trackers, resend
socket           the object that users send and receive with
threads          what a socket keeps of each thread that receives from it, for as long as the thread lives
tracker          the fate of a message that was sent with `track=True`
unclosed         a socket that its program dropped without `close`
upstream_sender  the sending of an XSUB
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.sockets.context import Context
    from transfer.sockets.monitor import Event, EventKind, Monitor
    from transfer.sockets.peer import PeerInfo
    from transfer.sockets.poller import Poller
    from transfer.sockets.socket import Socket
    from transfer.sockets.tracker import Tracker

__all__ = ["Context", "Event", "EventKind", "Monitor", "PeerInfo", "Poller", "Socket", "Tracker"]

exports(
    __name__,
    {
        "context": "Context",
        "monitor": "Event EventKind Monitor",
        "peer": "PeerInfo",
        "poller": "Poller",
        "socket": "Socket",
        "tracker": "Tracker",
    },
)
