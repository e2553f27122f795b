"""The sending of an XSUB: subscriptions, and messages for the XPUBs among its peers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from transfer.patterns import XSubscriber
from transfer.patterns.xpub_xsub import UPSTREAM, decode_subscription
from transfer.sockets.sender import MessageSender
from transfer.sockets.tracker import Tracker
from transfer.transports.core.copies import owned
from transfer.transports.errors import Broken, UsageError

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.transports.core.contract import SocketBase


class UpstreamSender(MessageSender):
    """Takes a part that begins with the byte 1 or 0 as a subscription; the other parts are a message."""

    def send(
        self, core: SocketBase, frames: Sequence[OutFrame], timeout: int, hold: bool, track: bool
    ) -> Tracker | None:
        rest: list[OutFrame] = []
        for frame in owned(frames):
            subscription = None if any(frame[:4]) else decode_subscription(frame[4])
            if subscription is None:
                rest.append(frame)
            else:
                self._subscribe(*subscription)
        if rest:
            self._send_up(rest)
        if not track:
            return None
        tracker = Tracker()
        tracker._not_confirmable()
        tracker._taken(1)
        tracker._released(None)
        return tracker

    def _subscribe(self, add: bool, prefix: bytes) -> None:
        if add:
            self._links.admission.prepare_subscribe(prefix)
            self._links.control.subscribe(prefix, add=True)
        else:
            with suppress(UsageError):  # it has no such subscription: nothing to do, as in ZeroMQ
                self._links.control.subscribe(prefix, add=False)

    def _send_up(self, frames: list[OutFrame]) -> None:
        """To each XPUB; one without room, and a socket without one, miss it, which is counted."""
        with self._links.state.lock:
            peers = [
                peer.stream
                for peer in self._links.state.peers.values()
                if peer.agreement is not None and UPSTREAM in peer.agreement.features
            ]
        for stream in peers:
            try:
                if not stream.send(frames):
                    stream.dropped += 1
            except Broken as error:
                self._links.loss.lost(stream, error)
        if not peers:
            assert isinstance(self._pattern, XSubscriber)
            self._pattern.drop("no_peer")
