"""One endpoint that stands for many: who is there is asked of a name service, and followed.

`connect("dns://trainers:5590")` makes one endpoint for its user, and under it one connection for each
address. Look-ups run on a thread of their own; everything else here in the reactor's. What follows from an
answer decides `transfer.transports.discovery.membership`.
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
from transfer.transports.discovery.membership import MOST, Membership, Polling, State
from transfer.transports.errors import AddressError, Broken, Closed, InternalError, TransferError
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    from transfer.sockets.connections.connections import Connections
    from transfer.sockets.context import Context
    from transfer.transports.address import Address
    from transfer.transports.connect.connection import Connector
    from transfer.transports.discovery.directory import Directory, Listing
    from transfer.transports.reactor import Timer

logger = logging.getLogger("transfer")

#: seconds between two looks at the connections of members, of which so many are looked at quickly
PULSE, FEW = 0.25, 256
#: seconds in which a retired peer takes nothing of what waits for it, behind which that goes to others
STUCK = 5.0
#: the same, without a message either way, of a retired peer that may still answer
QUIET = 5.0
#: seconds that a retired peer of a DEALER or PAIR, which cannot be kept from new work, has at most
LONGEST_LEAVE = 30.0


def open_directory(address: Address, context: Context) -> Directory:
    """The name service of an endpoint. Raises NotSupported, OptionError."""
    if address.scheme == "dns":
        with undivided():
            from transfer.transports.discovery.dns import DnsDirectory

        return DnsDirectory(address)
    with undivided():
        from transfer.broker.clients.registry import RegistryDirectory

    return RegistryDirectory(address, context)


@dataclass(slots=True)
class _Member:
    """One of those that are followed. closed: its connector is: a connection that ends is not made again.
    muted: it gets no new work. retired: time.monotonic() when it was. moved: the messages that waited for
    it, that it was sent and that it sent, and when one of these numbers changed."""

    record: Endpoint
    closed: bool = False
    muted: bool = False
    retired: float = 0.0
    moved: tuple[tuple[int, int, int], float] = ((0, 0, 0), 0.0)


class DirectoryConnector:
    """The connector of an endpoint that stands for many; see `connect.connection.Connector`.

    One thread `transfer-discovery` until `close`, which does not wait for a look-up that is under way.
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
        """Members that are there, as far as the name service said."""
        return self._membership.listed

    def lost(self) -> None:
        """Has no connection of its own."""

    def close(self) -> None:
        self._stop.set()
        self._directory.close()
        if self._timer is not None:
            self._timer.cancel()
        for member in list(self._members.values()):
            member.record.close()

    # -- the thread that asks -----------------------------------------------------------------------

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
                # Of a library, for an answer that nobody thought of. Without this thread nobody new is found.
                logger.exception("a look-up of %s failed", self.address)
                outcome = InternalError(f"a look-up of {self.address} failed: {error}")
                pause = polling.failed()
            try:
                self._links.context.reactor.call_soon(self._heard, outcome)
            except TransferError:  # the context has ended
                break
            self._stop.wait(pause)

    # -- what it heard; from here on in the reactor's thread ----------------------------------------

    def _heard(self, outcome: Listing | TransferError) -> None:
        if self._stop.is_set() or self._links.closing:
            return
        if isinstance(outcome, TransferError):
            self._failed(outcome)
            return
        self._failing = False
        self._links._count("looked_up:done")
        changes = self._membership.update(outcome, most := min(MOST, share_of_descriptors(2)))
        self._tell_cut(len(outcome.members), most)
        for address in changes.added:
            self._add(address)
            self._tell("added", EventKind.MEMBER_ADDED, address)
        for address in changes.restored:
            self._tell("restored", EventKind.MEMBER_ADDED, address)
            self._mute(self._members[address], False)
        for address in [*changes.held, *changes.retired]:
            self._members[address].record.close()
            self._members[address].closed = True
        for address in changes.retired:
            self._tell("retired", EventKind.MEMBER_RETIRED, address)
            self._retire(self._members[address])
        for address in changes.held:
            if self._members[address].record.peer is None:
                self._remove(address)
        if any(changes):
            logger.info("%s: %d are there: %s", self.address, self.listed, _summary(changes._asdict()))
        nobody = AddressError(f"nobody is listed for {self.address}") if not self.listed else None
        if nobody is not None or isinstance(self.record.error, AddressError):
            self.record.error = nobody

    def _failed(self, error: TransferError) -> None:
        self.record.error = error
        self._links._count("looked_up:failed")
        self._links.emit(EventKind.LOOK_UP_FAILED, str(self.address), error=error)
        if not self._failing:  # once, and not every few seconds for as long as it lasts
            self._failing = True
            logger.warning("%s; those that are known stay (%d)", str(error).partition("\n")[0], self.listed)

    def _tell_cut(self, listed: int, most: int) -> None:
        """That not all can be followed; once, and not with each answer for as long as it lasts."""
        cut, before = listed > most, self._cut
        self._cut = cut
        if cut and not before:
            text = "%s: %d addresses are listed, %d are followed, and the rest is left out; %s"
            logger.warning(text, self.address, listed, most, descriptor_hint())

    def _tell(self, word: str, kind: EventKind, address: Address) -> None:
        self._links._count(f"member:{word}")
        self._links.emit(kind, str(self.address), str(address))

    # -- members ------------------------------------------------------------------------------------

    def _add(self, address: Address) -> None:
        try:
            record = self._links.reach_member(self, address)
        except TransferError as error:  # certificates that cannot be read, say; others must not miss theirs
            self.record.error = error
            logger.warning("%s cannot be followed: %s", address, error)
            record = None
        if record is None:
            self._membership.forget(address)
        else:
            self._members[address] = _Member(record)

    def _retire(self, member: _Member) -> None:
        """No new work; the connection stays until `_look` finds that it is done or dead."""
        if member.record.peer is None:
            self._remove(member.record.address)
            return
        member.retired = time.monotonic()
        member.moved = ((-1, -1, -1), member.retired)
        self._mute(member, True)
        self._look_later()

    def _remove(self, address: Address) -> None:
        member = self._members.pop(address)
        self._membership.ended(address)
        self._links._forget(member.record)
        self._tell("removed", EventKind.MEMBER_REMOVED, address)

    def connected(self, record: Endpoint, peer: Peer) -> None:
        """A member has its connection."""
        socket = self._links._socket()
        if socket is not None and socket.tcp_keepalive < 0:
            with suppress(OSError):  # its end is being told at this moment
                liveness.probe(peer.fd)
        self._links.take_queue(self.record)
        self._look_later()

    def ended(self, record: Endpoint) -> None:
        """The connection of a member has ended. Any thread."""
        with suppress(TransferError):
            self._links.context.reactor.call_soon(self._ended, record)

    def _ended(self, record: Endpoint) -> None:
        member = self._members.get(record.address)
        if self._stop.is_set() or member is None or member.record is not record or record.peer is not None:
            return
        member.muted = False
        if not self._membership.ended(record.address):
            self._remove(record.address)
        elif member.closed:  # it was away from the list for a while, and is back
            del self._members[record.address]
            self._links._forget(record)
            self._add(record.address)
        if self.record.queue is None and not any(one.record.peer for one in self._members.values()):
            self._links._queue_for(self.record)

    def _mute(self, member: _Member, muted: bool) -> None:
        """Keeps new work from a peer, or gives it some again. Only where nothing is received: who is taken
        out of the core's turns is not heard either."""
        links, peer = self._links, member.record.peer
        socket = links._socket()
        if peer is None or socket is None or links.receives or member.muted == muted:
            return
        member.muted = muted
        if muted:
            socket._detach(peer.stream)
        else:
            links._attach(socket, peer.stream)
            if peer.stream not in links.peers:  # it was lost at this moment
                socket._detach(peer.stream)
                return
        if peer.foreign:  # both leave the stream without a reader
            peer.stream.on_readable = partial(links._read, peer)
            links._read(peer)
        if not muted:
            links.give_orphans()
        socket._notify()

    # -- those that are connected, some times a second ----------------------------------------------

    def _look_later(self) -> None:
        if self._timer is None and not self._stop.is_set():
            pause = PULSE * (1 + len(self._members) // FEW)
            self._timer = self._links.context.reactor.call_later(pause, self._look)
            if self._stop.is_set():  # by another thread, which may not have seen the timer
                self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._stop.is_set() or self._links.closing:
            return
        now = time.monotonic()
        for address, member in list(self._members.items()):
            peer = member.record.peer
            if peer is None:
                continue
            state = self._membership.state(address)
            alive = liveness.answers(peer.fd)
            if state is State.LISTED:
                if alive == member.muted:
                    self._tell_doubt(address, alive)
                    self._mute(member, not alive)
            elif not alive:
                self._links.lost(
                    peer.stream, Broken(f"{address} does not answer, and is not listed any more")
                )
            elif state is State.RETIRED and self._is_done(member, peer, now):
                self._links.lost(peer.stream, Closed(f"{address} is not listed any more"))
        if any(member.record.peer is not None for member in self._members.values()):
            self._look_later()

    def _tell_doubt(self, address: Address, alive: bool) -> None:
        if self._links.receives:  # nothing follows from it there
            return
        text = "%s: %s answers again" if alive else "%s: %s does not answer; it gets no work until it does"
        logger.info(text, self.address, address)
        if not alive:
            self._links._count("member:doubted")

    def _is_done(self, member: _Member, peer: Peer, now: float) -> bool:
        """A retired peer has done with what it was given, or nothing says that it ever will."""
        links, stream = self._links, peer.stream
        if not links.sends:
            return False  # whether it has something left to send is known only to itself
        moved = (int(stream.queued), int(stream.sent), int(stream.received))
        if moved != member.moved[0]:
            member.moved = (moved, now)
        stuck = now - member.moved[1]
        if moved[0]:
            return stuck > STUCK
        if links.pattern.socket_type is SocketType.REQ:
            return not links.pattern.has_open(stream)
        if links.receives:
            socket = links._socket()
            with suppress(Closed):  # what it has confirmed may not have been read yet
                _ = socket is not None and socket._readable()
            return (not peer.unconfirmed and stuck > QUIET) or now - member.retired > LONGEST_LEAVE
        # A subscriber confirms nothing: what the kernel still has for it gets a second.
        return not peer.unconfirmed and (peer.confirms or stuck > 1.0)


def _summary(changes: dict[str, list[Address]]) -> str:
    """For one line of a log, which need not have thousands of addresses."""
    said = []
    for what, addresses in changes.items():
        if addresses:
            more = f" and {len(addresses) - 8} more" if len(addresses) > 8 else ""
            said.append(f"{what} {', '.join(map(str, addresses[:8]))}{more}")
    return "; ".join(said)


def is_member_of(record: Endpoint, connector: Connector | None) -> bool:
    """Whether an endpoint is one of those that this connector follows."""
    return record.follower is not None and record.follower is connector
