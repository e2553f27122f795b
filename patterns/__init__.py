"""The messaging patterns of ZeroMQ as pure state: which peer gets a message, and which call is legal now.

No sockets, threads or clocks: peers are opaque, and frames are only read. `transfer.sockets.socket` drives
these classes. For a plain message the compiled core chooses the peer by the same rules:
`transports/core/native/peer_choice.pyx`.

base           base of all patterns: a small class over opaque peers
pair           exactly one peer at a time, both ways
pipelined      REQ and REP with many requests open at once, each matched to its reply by its number
pub_sub        PUB and SUB: the publisher receives, applies and acknowledges subscriptions
push_pull      PUSH and PULL
req_rep        REQ and REP: one request, then its reply
router_dealer  ROUTER and DEALER: requests and replies without lock-step, by identity
subscriptions  subscribed prefixes and their counts
xpub_xsub      XPUB and XSUB: subscriptions are messages that the program receives and sends
"""

from __future__ import annotations

if __name__ != "transfer.patterns":
    raise ImportError("the package is transfer.patterns: `from transfer.patterns import ...`")

from transfer.patterns.base import Pattern, ReceiveMode, SendMode
from transfer.patterns.pair import Pair
from transfer.patterns.pipelined import PipelinedReplier, PipelinedRequester
from transfer.patterns.pub_sub import Publisher, Subscriber
from transfer.patterns.push_pull import Puller, Pusher
from transfer.patterns.req_rep import Replier, Requester
from transfer.patterns.router_dealer import Dealer, Router
from transfer.patterns.xpub_xsub import XPublisher, XSubscriber
from transfer.transports.core.wire import SocketType

PATTERNS: dict[SocketType, type[Pattern]] = {
    cls.socket_type: cls
    for cls in (
        *(Requester, Replier, Publisher, Subscriber, Pusher, Puller, Pair, Dealer, Router),
        *(XPublisher, XSubscriber),
    )
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
    "XPublisher",
    "XSubscriber",
]
