"""One endpoint that stands for many: a name service lists its members, and the list is followed.

`connect("dns://trainers:5590")` makes one endpoint for the user, and one connection for each address of the
list. Look-ups run in a thread; everything else here in the reactor's thread.
`transfer.transports.discovery.membership` decides what follows from a list.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from transfer.sockets.monitor import EventKind
from transfer.sockets.peer import Endpoint, Peer
from transfer.transports.core.wire import SocketType
from transfer.transports.descriptors import descriptor_hint, share_of_descriptors
from transfer.transports.discovery import liveness
from transfer.transports.discovery.membership import MOST, Membership, MemberState, Polling
from transfer.transports.errors import AddressError, Broken, Closed, InternalError, TransferError

if TYPE_CHECKING:
    from transfer.sockets.connections.connections import Connections
    from transfer.transports.address import Address
    from transfer.transports.connect.connection import Connector
    from transfer.transports.discovery.directory import Directory, Listing
    from transfer.transports.reactor import Timer

logger = logging.getLogger("transfer")

#: seconds between two checks of the members' connections, for up to _FEW members
PULSE, _FEW = 0.25, 256
#: seconds without progress after which the queue of a retired peer goes to other peers
_STUCK = 5.0
#: seconds without a message either way, for a retired peer that may still reply
QUIET = 5.0
#: seconds that a retired peer of a DEALER or PAIR stays at most, since it cannot be kept from new work
_LONGEST_LEAVE = 30.0


@dataclass(slots=True)
class _Member:
    """A member that is followed. closed: its connector is closed, so a lost connection is not made again.
    muted: it gets no new work. retired: time.monotonic() of that. moved: the numbers of its queued, sent and
    received messages, and when one of them changed."""

    record: Endpoint
    closed: bool = False
    muted: bool = False
    retired: float = 0.0
    moved: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)


class DirectoryConnector:
    """The connector of an endpoint that stands for many; see `connect.connection.Connector`.

    It runs one thread, `transfer-discovery`, until `close`, which does not wait for a look-up in progress.
    """

    def __init__(self, links: Connections, record: Endpoint, directory: Directory) -> None:
        self.address = record.address
        self.record = record
        self._links = links
        self._directory = directory
        self._membership = Membership()
        self._members: dict[Address, _Member] = {}
        self._stop = threading.Event()
        self._timer: Timer | None = None
        self._failing = self._cut = False
        threading.Thread(target=self._run, name="transfer-discovery", daemon=True).start()

    @property
    def listed(self) -> int:
        """Number of members in the last list of the name service."""
        return self._membership.listed

    def lost(self) -> None:
        """Does nothing: it has no connection itself."""

    def close(self) -> None:
        self._stop.set()
        self._directory.close()
        if self._timer is not None:
            self._timer.cancel()
        for member in list(self._members.values()):
            member.record.close()

    # -- the look-up thread -------------------------------------------------------------------------

    def _run(self) -> None:
        polling = Polling()
        while not self._stop.is_set():
            outcome: Listing | TransferError
            try:
                outcome = self._directory.look_up()
                pause = polling.answered(outcome.ttl)
            except Closed:
                break
            except TransferError as error:
                outcome = error
                pause = polling.failed()
            except Exception as error:
                # A library's error for an unexpected answer. Without this thread no new member is found.
                logger.exception("a look-up of %s failed", self.address)
                outcome = InternalError(f"a look-up of {self.address} failed: {error}")
                pause = polling.failed()
            try:
                self._links.state.context.reactor.call_soon(self._apply, outcome)
            except TransferError:  # the context has ended
                break
            self._stop.wait(pause)

    # -- results; from here on in the reactor's thread ----------------------------------------------

    def _apply(self, outcome: Listing | TransferError) -> None:
        if self._stop.is_set() or self._links.state.closing:
            return
        if isinstance(outcome, TransferError):
            self._failed(outcome)
            return
        self._failing = False
        self._links.state.count("looked_up:done")
        changes = self._membership.update(outcome, most := min(MOST, share_of_descriptors(2)))
        self._log_cut(len(outcome.members), most)
        for address in changes.added:
            self._add(address)
            self._report("added", EventKind.MEMBER_ADDED, address)
        for address in changes.restored:
            self._report("restored", EventKind.MEMBER_ADDED, address)
            self._mute(self._members[address], False)
        for address in [*changes.held, *changes.retired]:
            self._members[address].record.close()
            self._members[address].closed = True
        for address in changes.retired:
            self._report("retired", EventKind.MEMBER_RETIRED, address)
            self._retire(self._members[address])
        for address in changes.held:
            if self._members[address].record.peer is None:
                self._remove(address)
        if any(changes):
            logger.info("%s: %d are there: %s", self.address, self.listed, _summary(changes._asdict()))
        empty = AddressError(f"no peer is listed for {self.address}") if not self.listed else None
        if empty is not None or isinstance(self.record.error, AddressError):
            self.record.error = empty

    def _failed(self, error: TransferError) -> None:
        self.record.error = error
        self._links.state.count("looked_up:failed")
        self._links.state.emit(EventKind.LOOK_UP_FAILED, str(self.address), error=error)
        if not self._failing:  # logged once, not at each failed look-up
            self._failing = True
            logger.warning("%s; known members stay (%d)", str(error).partition("\n")[0], self.listed)

    def _log_cut(self, listed: int, most: int) -> None:
        """Logs that not all members can be followed: once, not for each list."""
        cut, before = listed > most, self._cut
        self._cut = cut
        if cut and not before:
            text = "%s: %d addresses are listed, %d are followed, and the rest is left out; %s"
            logger.warning(text, self.address, listed, most, descriptor_hint())

    def _report(self, word: str, kind: EventKind, address: Address) -> None:
        self._links.state.count(f"member:{word}")
        self._links.state.emit(kind, str(self.address), str(address))

    # -- members ------------------------------------------------------------------------------------

    def _add(self, address: Address) -> None:
        try:
            record = self._links.reach_member(self, address)
        except TransferError as error:  # other members must not miss the change
            self.record.error = error
            logger.warning("%s cannot be followed: %s", address, error)
            record = None
        if record is None:
            self._membership.forget(address)
        else:
            self._members[address] = _Member(record)

    def _retire(self, member: _Member) -> None:
        """Gives the member no new work; the connection stays until `_check_members` finds it done or dead."""
        if member.record.peer is None:
            self._remove(member.record.address)
            return
        member.retired = time.monotonic()
        member.moved = ((-1, -1, -1), member.retired)
        self._mute(member, True)
        self._schedule_check()

    def _remove(self, address: Address) -> None:
        member = self._members.pop(address)
        self._membership.ended(address)
        self._links.forget(member.record)
        self._report("removed", EventKind.MEMBER_REMOVED, address)

    def connected(self, record: Endpoint, peer: Peer) -> None:
        """Handles a new connection of a member."""
        socket = self._links.state.socket()
        if socket is not None and socket.tcp_keepalive < 0:
            with suppress(OSError):  # the connection is ending
                liveness.probe(peer.fd)
        self._links.loss.take_queue(self.record)
        self._schedule_check()

    def ended(self, record: Endpoint) -> None:
        """Handles the end of a member's connection. Any thread."""
        with suppress(TransferError):
            self._links.state.context.reactor.call_soon(self._ended, record)

    def _ended(self, record: Endpoint) -> None:
        member = self._members.get(record.address)
        if self._stop.is_set() or member is None or member.record is not record or record.peer is not None:
            return
        member.muted = False
        if not self._membership.ended(record.address):
            self._remove(record.address)
        elif member.closed:  # it was missing in the list for a while
            del self._members[record.address]
            self._links.forget(record)
            self._add(record.address)
        if self.record.queue is None and not any(one.record.peer for one in self._members.values()):
            self._links.loss.queue_for(self.record)

    def _mute(self, member: _Member, muted: bool) -> None:
        """Keeps new work from a peer, or gives it work again. Not on a socket that receives: a peer that the
        core does not serve is not read either."""
        links, peer = self._links, member.record.peer
        socket = links.state.socket()
        if peer is None or socket is None or links.state.receives or member.muted == muted:
            return
        member.muted = muted
        if muted:
            socket._detach(peer.stream)
        else:
            links.state.attach(socket, peer.stream)
            if peer.stream not in links.state.peers:  # it was lost at this moment
                socket._detach(peer.stream)
                return
        if peer.foreign:  # after both calls the stream has no reader
            peer.stream.on_readable = partial(links.control.read, peer)
            links.control.read(peer)
        if not muted:
            links.orphans.give()
        socket._notify()

    # -- connected members, checked periodically ----------------------------------------------------

    def _schedule_check(self) -> None:
        if self._timer is None and not self._stop.is_set():
            pause = PULSE * (1 + len(self._members) // _FEW)
            self._timer = self._links.state.context.reactor.call_later(pause, self._check_members)
            if self._stop.is_set():  # another thread closed this and may not have seen the timer
                self._timer.cancel()

    def _check_members(self) -> None:
        self._timer = None
        if self._stop.is_set() or self._links.state.closing:
            return
        now = time.monotonic()
        for address, member in list(self._members.items()):
            peer = member.record.peer
            if peer is None:
                continue
            state = self._membership.state(address)
            alive = liveness.answers(peer.fd)
            if state is MemberState.LISTED:
                if alive == member.muted:
                    self._log_doubt(address, alive)
                    self._mute(member, not alive)
            elif not alive:
                self._links.loss.lost(
                    peer.stream, Broken(f"{address} does not answer, and is not listed any more")
                )
            elif state is MemberState.RETIRED and self._is_done(member, peer, now):
                self._links.loss.lost(peer.stream, Closed(f"{address} is not listed any more"))
        if any(member.record.peer is not None for member in self._members.values()):
            self._schedule_check()

    def _log_doubt(self, address: Address, alive: bool) -> None:
        if self._links.state.receives:  # such a socket mutes no peer
            return
        text = "%s: %s answers again" if alive else "%s: %s does not answer; it gets no work until it does"
        logger.info(text, self.address, address)
        if not alive:
            self._links.state.count("member:doubted")

    def _is_done(self, member: _Member, peer: Peer, now: float) -> bool:
        """Whether a retired peer is done with its messages, or shows no sign that it ever will be."""
        links, stream = self._links, peer.stream
        if not links.state.sends:
            return False  # only the peer knows whether it has more to send
        moved = (int(stream.queued), int(stream.sent), int(stream.received))
        if moved != member.moved[0]:
            member.moved = (moved, now)
        stuck = now - member.moved[1]
        if moved[0]:
            return stuck > _STUCK
        if links.state.pattern.socket_type is SocketType.REQ:
            return not links.state.pattern.has_open(stream)
        if links.state.receives:
            socket = links.state.socket()
            with suppress(Closed):  # its confirmations may be unread
                _ = socket is not None and socket._readable()
            return (not peer.unconfirmed and stuck > QUIET) or now - member.retired > _LONGEST_LEAVE
        # A subscriber confirms nothing: its kernel gets a second to deliver the rest.
        return not peer.unconfirmed and (peer.confirms or stuck > 1.0)


def _summary(changes: dict[str, list[Address]]) -> str:
    """Formats changes for one line of the log, without thousands of addresses."""
    texts = []
    for what, addresses in changes.items():
        if addresses:
            more = f" and {len(addresses) - 8} more" if len(addresses) > 8 else ""
            texts.append(f"{what} {', '.join(map(str, addresses[:8]))}{more}")
    return "; ".join(texts)


def is_member_of(record: Endpoint, connector: Connector | None) -> bool:
    """Whether an endpoint is a member that this connector follows."""
    return record.follower is not None and record.follower is connector
