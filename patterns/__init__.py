"""The ZeroMQ modes as pure state: who gets this message, what is legal now.

No sockets, no threads, no clocks: peers are opaque, frames are only looked at. `transfer.socket`
drives these classes; the compiled core does the common case by the same rules.
"""

from __future__ import annotations

from patterns.base import Pattern, ReceiveMode, SendMode
from patterns.pair import Pair
from patterns.pipelined import PipelinedReplier, PipelinedRequester
from patterns.pub_sub import Publisher, Subscriber
from patterns.push_pull import Puller, Pusher
from patterns.req_rep import Replier, Requester
from patterns.router_dealer import Dealer, Router
from transports.wire import SocketType

PATTERNS: dict[SocketType, type[Pattern]] = {
    cls.socket_type: cls
    for cls in (Requester, Replier, Publisher, Subscriber, Pusher, Puller, Pair, Dealer, Router)
}

__all__ = [
    "PATTERNS",
    "Dealer",
    "Pair",
    "Pattern",
    "PipelinedReplier",
    "PipelinedRequester",
    "Publisher",
    "Puller",
    "Pusher",
    "ReceiveMode",
    "Replier",
    "Requester",
    "Router",
    "SendMode",
    "Subscriber",
]
