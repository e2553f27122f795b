"""XPUB and XSUB: subscriptions are messages that the program receives and sends, as in ZeroMQ.

Such a message is a byte, 1 to subscribe and 0 to unsubscribe, and the prefix. On the wire XPUB is a PUB and
XSUB a SUB, and their subscriptions are the control frames of these.
"""

from __future__ import annotations

from collections import deque

from transfer.patterns.base import Peer, ReceiveMode
from transfer.patterns.pub_sub import Publisher, Subscriber
from transfer.transports.core.wire import SocketType

#: in both hellos: an XPUB takes messages that are no subscriptions, which an XSUB sends to no other peer
UPSTREAM = "upstream"
_SUBSCRIBED, _UNSUBSCRIBED = b"\1", b"\0"


def decode_subscription(data: bytes) -> tuple[bool, bytes] | None:
    """(whether it subscribes, the prefix) of a message of a subscription; None: it is another message."""
    return (data[0] == 1, data[1:]) if data[:1] in (_SUBSCRIBED, _UNSUBSCRIBED) else None


class XPublisher(Publisher):
    """A publisher whose program receives a subscription when the first peer subscribes to a prefix, and an
    unsubscription when the last one has left it.

    verbose: it receives each subscription. verboser: and the last unsubscription of each peer from a prefix.
    manual: as verboser, and `subscribe` of the socket decides which messages a peer gets.
    """

    socket_type = SocketType.XPUB
    receive_mode = ReceiveMode.FAIR
    reads_at_once = True  # subscriptions apply although the program never receives

    def __init__(self) -> None:
        super().__init__()
        self.verbose = self.verboser = self.manual = False
        #: how many peers have subscribed to each prefix
        self._peers_of: dict[bytes, int] = {}
        #: messages for the program, each with its peer, until the socket takes them
        self.notices: deque[tuple[Peer, bytes]] = deque()

    def show(self, verbose: bool, verboser: bool, manual: bool) -> None:
        """Sets which subscriptions the program receives."""
        self.verbose, self.verboser, self.manual = verbose or verboser, verboser, manual

    @property
    def applies_subscriptions(self) -> bool:  # type: ignore[override]  # it may change
        return not self.manual

    def detach(self, peer: Peer) -> bool:
        for prefix in sorted(set(self._subscriptions.get(peer, ()))):
            self._left(peer, prefix)
        return super().detach(peer)

    def subscribe(self, peer: Peer, prefix: bytes) -> bool:
        known = self._subscriptions.get(peer)
        again = known is not None and prefix in known
        if not super().subscribe(peer, prefix):
            return False
        if not again:
            self._peers_of[prefix] = self._peers_of.get(prefix, 0) + 1
        if self.verbose or self.manual or (not again and self._peers_of[prefix] == 1):
            self.notices.append((peer, _SUBSCRIBED + prefix))
        return True

    def unsubscribe(self, peer: Peer, prefix: bytes) -> bool:
        if not super().unsubscribe(peer, prefix):
            return False
        if prefix not in self._subscriptions[peer]:
            self._left(peer, prefix)
        return True

    def _left(self, peer: Peer, prefix: bytes) -> None:
        self._peers_of[prefix] -= 1
        last = not self._peers_of[prefix]
        if last:
            del self._peers_of[prefix]
        if last or self.verboser or self.manual:
            self.notices.append((peer, _UNSUBSCRIBED + prefix))


class XSubscriber(Subscriber):
    """A subscriber whose program sends the subscriptions, and receives all that publishers send."""

    socket_type = SocketType.XSUB
    receive_mode = ReceiveMode.FAIR

    def may_send(self) -> bool:
        return True
