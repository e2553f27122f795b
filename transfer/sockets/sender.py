"""Sends whole messages by the pattern: envelopes, compression, trackers, resend, the preferred peer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.patterns import PipelinedReplier, Replier, Router
from transfer.patterns.base import ANYONE, Pattern, SendMode
from transfer.sockets.compression import compressed
from transfer.sockets.tracker import Tracker
from transfer.transports.core.copies import owned
from transfer.transports.core.wire import MAX_TOPIC
from transfer.transports.errors import Again, Broken

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.connections import Connections
    from transfer.sockets.peer import Peer
    from transfer.sockets.peer_preference import Balance
    from transfer.transports.core.contract import SocketBase
#: seconds between two looks for room in all queues
_ROOM_CHECK = 0.001


class MessageSender:
    """The sending of one socket. Messages that the core sends alone never pass through it."""

    def __init__(self, pattern: Pattern, connections: Connections, values: dict[str, Any]) -> None:
        """values: of the socket's options."""
        self._pattern = pattern
        self._links = connections
        self._values = values
        self.balance: Balance | None = None

    def send(
        self, core: SocketBase, frames: Sequence[OutFrame], timeout: int, hold: bool, track: bool
    ) -> Tracker | None:
        """Sends one message: to the peer that the pattern names, to all, or to one that has room.

        core: sends it. timeout: ms. hold: keeps the caller's memory instead of a copy. track: returns a
        Tracker. Raises as `Socket.send`.
        """
        pattern = self._pattern
        if self._links.unqueued:  # as it rarely is: no call for each message
            self._links.make_queues()
        tracker = Tracker() if track else None
        released = tracker._released if tracker is not None else None
        target, frames = pattern.route(frames)
        if self._values["compression"] is not None:
            # Subscriptions are compared with the first part, so it stays uncompressed.
            frames = compressed(frames, pattern.send_mode is SendMode.FANOUT)
        if target is None:  # dropped and counted by the pattern
            return _dropped(tracker)
        if self._values["resend"] and target is ANYONE and pattern.send_mode is SendMode.ROUND_ROBIN:
            # It may be sent again after the caller has changed its memory.
            frames, hold = owned(frames), True
        if self._values["xpub_nodrop"]:
            _wait_for_all(core, frames, timeout)
        taken = None
        if pattern.send_mode is not SendMode.FANOUT and (tracker is not None or self._values["resend"]):
            core._lockstep = False  # the reply must pass through `_admitted`, which confirms it
            taken = partial(self._links.orphans.note, frames, tracker)
        try:
            if target is ANYONE and self._values["conflate"]:
                taker = self._links.orphans.send_newest(frames, released, taken)
            elif target is ANYONE:
                taker = self._send_to_one(core, frames, timeout, hold, released, taken)
            else:
                taker = self._send_to(core, target, frames, timeout, hold, released, taken)
        except Again as error:
            if self._links.state.fatal is not None:
                raise self._links.state.fatal from None
            raise (self._links.no_peer.error() if self._links.no_peer.has_no_peer else error) from None
        if taker is None:
            return _dropped(tracker)
        if tracker is not None and pattern.send_mode is SendMode.FANOUT:
            tracker._taken(1)  # the core reports once, after the last stream
            tracker._not_confirmable()
        if pattern.ordered:  # last: another thread may receive the reply from now on
            pattern.sent(taker, time.monotonic_ns())
        return tracker

    def _send_to_one(
        self,
        core: SocketBase,
        frames: Sequence[OutFrame],
        timeout: int,
        hold: bool,
        released: Any,
        taken: Any,
    ) -> Any:
        """Sends to the first preferred peer with room, or to the one that the core chooses."""
        passed: list[Peer] = []
        for peer in self._preferred(core._behind):
            with suppress(Again, Broken):
                taker = core._send_frames(
                    frames, 0, stream=peer.stream, hold=hold, released=released, taken=taken
                )
                if self.balance is not None:
                    self.balance.took(peer, passed)
                return taker
            passed.append(peer)
        return core._send_frames(frames, timeout, hold=hold, released=released, taken=taken)

    def _preferred(self, behind: bool) -> Sequence[Peer]:
        """The preferred peers. behind: messages of a lost peer wait, and go first: there are none."""
        links, balance = self._links, self.balance
        wanted = links.state.peers if balance is not None else self._pattern.preferred()
        if not wanted or behind:
            return ()
        peers = [links.state.peers.get(stream) for stream in list(wanted)]
        there = [peer for peer in peers if peer is not None and not peer.pending]
        return there if balance is None else balance.order(there)

    def _send_to(
        self,
        core: SocketBase,
        target: Any,
        frames: Sequence[OutFrame],
        timeout: int,
        hold: bool,
        released: Any,
        taken: Any,
    ) -> Any:
        """Sends to this peer only (REP, ROUTER). None: it is gone; the message is dropped and counted."""
        pattern = self._pattern
        if isinstance(pattern, Router) and not pattern.mandatory:
            timeout = 0
        try:
            return core._send_frames(
                frames, timeout, stream=target, hold=hold, released=released, taken=taken
            )
        except Broken:
            if isinstance(pattern, Replier | PipelinedReplier):
                pattern.gone(target)
            else:
                pattern.drop("peer_gone")
            return None
        except Again:
            if isinstance(pattern, Router) and not pattern.mandatory:
                pattern.drop("full")
                return None
            raise


def _wait_for_all(core: SocketBase, frames: Sequence[OutFrame], timeout: int) -> None:
    """Waits until all peers that subscribed to the message have room. Raises Again after `timeout` ms."""
    topic, data = frames[0][2], frames[0][4]
    if topic is None:
        topic = data if type(data) is bytes else bytes(memoryview(data).cast("B")[:MAX_TOPIC])
    deadline = time.monotonic() + timeout / 1000 if timeout >= 0 else None
    while any(stream.matches(topic) and _is_full(stream) for stream in core._streams()):
        if core.closed:
            raise core._closed_error()
        if deadline is not None and time.monotonic() >= deadline:
            raise core._no_room()
        time.sleep(_ROOM_CHECK)


def _is_full(stream: Any) -> bool:
    most, most_bytes = stream.send_high_water, stream.send_high_water_bytes
    return bool(0 < most <= stream.queued or 0 < most_bytes <= stream.queued_bytes)


def _dropped(tracker: Tracker | None) -> Tracker | None:
    """Ends the tracker of a dropped message, whose memory is free."""
    if tracker is not None:
        tracker._end(Broken("no peer took the message", hint="there is no such peer, or it had no room"))
    return tracker
