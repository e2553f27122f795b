"""Sending that the core does not do alone: several parts, trackers, envelopes, compression."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.constants import DONTWAIT, SNDMORE
from transfer.patterns import PipelinedReplier, Replier, Requester, Router
from transfer.patterns.base import ANYONE, Pattern, SendMode
from transfer.sockets.balance import Balance
from transfer.sockets.compression import compressed
from transfer.sockets.connections import Connections
from transfer.sockets.lockstep import SENDING, Turns
from transfer.sockets.peer import Peer
from transfer.sockets.tracker import Tracker
from transfer.transports.arguments import flags_of, wrong
from transfer.transports.base import Capabilities
from transfer.transports.core.copies import owned
from transfer.transports.errors import Again, ArgumentError, Broken, UsageError

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.context import Context
    from transfer.transports.core.contract import SocketBase
else:
    SocketBase = object


class Sending(Turns):
    """The sending half of a socket. A plain message of one part never passes through it."""

    if TYPE_CHECKING:
        context: Context
        _links: Connections
        _pattern: Pattern
        _requester: Requester | None
        _balance: Balance | None
        _partial: dict[int, list[OutFrame]]
        _values: dict[str, Any]
        _inherited: bool
        _lockstep: bool
        _ending: threading.Lock
        _deciding: threading.RLock

        def _check_usable(self) -> None: ...
        def _ways_changed(self) -> None: ...

    def send_multipart(
        self, msg_parts: Sequence[Any], flags: int = 0, copy: bool = True, track: bool = False
    ) -> Tracker | None:
        """Sends several parts as one message, completely or not at all.

        Args:
            msg_parts: a list of objects with contiguous buffers.
            flags: DONTWAIT, SNDMORE, or 0.
            copy, track: as in `send`.

        Returns:
            A Tracker if `track`, else None.

        Raises:
            Again, Closed, StateError, NotSupported: as in `send`.
        """
        if isinstance(msg_parts, (str, bytes, bytearray, memoryview)) or not isinstance(msg_parts, Iterable):
            raise ArgumentError(
                f"the parts of a message are a list, not {type(msg_parts).__name__}",
                hint="send() sends one part, send_multipart([part]) too",
            )
        frames: list[OutFrame] = [(0, 0, None, None, part) for part in msg_parts]
        return self._send_message(frames, flags_of(flags), not copy, track)

    def send_string(self, u: str, flags: int = 0, copy: bool = True, encoding: str = "utf-8") -> None:
        """Sends a text as one part. Raises as `send`, and ArgumentError."""
        self.send(encoded(u, encoding), flags, copy)

    def send_json(self, obj: Any, flags: int = 0, **kwargs: Any) -> None:
        """Sends an object as JSON; keyword arguments go to `json.dumps`. Raises as `send`, ArgumentError."""
        self.send(json_of(obj, kwargs), flags)

    def _send_general(self, data: Any, flags: int = 0, copy: bool = True, track: bool = False) -> Any:
        if flags & SNDMORE or self._partial:
            return self._send_part([(0, 0, None, None, data)], flags, not copy, track)
        return self._send_message([(0, 0, None, None, data)], flags, not copy, track)

    def _send_outframes(
        self, frames: list[OutFrame], flags: int = 0, track: bool = False, copy: bool | None = None
    ) -> Tracker | None:
        """Sends frames for the tensor methods. copy None: memory is held only until the kernel has it, unless
        it is memory of `Context.empty`."""
        if copy is None and not (flags & ~DONTWAIT or track or self._general_send or self._lent):
            # The core may do it alone, as a plain send.
            self._send_frames(frames, 0 if flags else self.send_timeout)
            return None
        hold = copy is False
        if copy is None and self._lent:
            hold = any(self.context.is_shared(frame[4]) for frame in frames)
        if flags & SNDMORE or self._partial:
            return self._send_part(frames, flags, hold, track or hold)
        return self._send_message(frames, flags, hold, track or hold)

    def _tensor_capabilities(self, flags: int) -> Capabilities:
        """Returns what all peers that a tensor may go to now support. Device pointers only where no step in
        between reads, keeps or multiplies the payload."""
        values, streams = self._values, self._streams()
        plain = self._pattern.send_mode is not SendMode.FANOUT and not (
            flags & SNDMORE
            or self._partial
            or values["compression"]
            or values["resend"]
            or values["conflate"]
        )
        if not plain or not streams:
            return Capabilities()
        return Capabilities(
            device_memory=all(getattr(s, "takes_device_memory", False) for s in streams),
            registers_memory=all(getattr(s, "registers_device_memory", False) for s in streams),
        )

    def _send_part(self, frames: list[OutFrame], flags: int, hold: bool, track: bool) -> Tracker | None:
        thread = threading.get_ident()
        if flags & SNDMORE:
            # The caller may change its memory after this returns, and nothing has been sent yet.
            kept = frames if hold else [_kept(frame) for frame in frames]
            self._check_usable()
            with self._deciding:  # else a thread with an older state would undo it
                self._partial.setdefault(thread, []).extend(kept)
                self._general_send = True
            return None
        parts = [*self._partial.pop(thread, ()), *frames]
        self._ways_changed()
        return self._send_message(parts, flags, hold, track)

    def _send_message(
        self, frames: Sequence[OutFrame], flags: int = 0, hold: bool = False, track: bool = False
    ) -> Tracker | None:
        """Sends one whole message by the pattern."""
        # Before the pattern: the error of a closed socket is Closed, whatever the pattern's state is.
        if self._inherited or self._ending.locked() or self._links.state.fatal is not None:
            self._check_usable()
        if not frames:
            raise UsageError("a message has at least one part")
        timeout = 0 if flags & DONTWAIT else self.send_timeout
        if self._turn is None:
            return self._send_whole(frames, timeout, hold, track)
        # One thread at a time: the pattern's turn must not change between the check and the send.
        timeout = self._enter(SENDING, timeout)
        try:
            return self._send_whole(frames, timeout, hold, track)
        finally:
            try:
                self._turn.leave(SENDING)
            except BaseException:  # of a signal handler, maybe before `leave` ran
                self._turn.leave(SENDING)
                raise

    def _send_whole(
        self, frames: Sequence[OutFrame], timeout: int, hold: bool, track: bool
    ) -> Tracker | None:
        pattern = self._pattern
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
        taken = None
        if pattern.send_mode is not SendMode.FANOUT and (tracker is not None or self._values["resend"]):
            self._lockstep = False  # the reply must pass through `_admitted`, which confirms it
            taken = partial(self._links.loss.note, frames, tracker)
        try:
            if target is ANYONE and self._values["conflate"]:
                taker = self._links.loss.send_newest(frames, released, taken)
            elif target is ANYONE:
                taker = self._send_to_one(frames, timeout, hold, released, taken)
            else:
                taker = self._send_to(target, frames, timeout, hold, released, taken)
        except Again as error:
            raise self._explained(error) from None
        if taker is None:
            return _dropped(tracker)
        if tracker is not None and pattern.send_mode is SendMode.FANOUT:
            tracker._taken(1)  # the core reports once, after the last stream
            tracker._not_confirmable()
        if pattern.ordered:  # last: another thread may receive the reply from now on
            pattern.sent(taker, time.monotonic_ns())
        return tracker

    def _send_to_one(
        self, frames: Sequence[OutFrame], timeout: int, hold: bool, released: Any, taken: Any
    ) -> Any:
        """Sends to the first preferred peer with room, or to the one that the distributor chooses."""
        passed: list[Peer] = []
        for peer in self._preferred():
            with suppress(Again, Broken):
                taker = self._send_frames(
                    frames, 0, stream=peer.stream, hold=hold, released=released, taken=taken
                )
                if self._balance is not None:
                    self._balance.took(peer, passed)
                return taker
            passed.append(peer)
        return self._send_frames(frames, timeout, hold=hold, released=released, taken=taken)

    def _preferred(self) -> Sequence[Peer]:
        """The preferred peers. Empty while messages of a lost peer wait: those go first."""
        links, balance = self._links, self._balance
        wanted = links.state.peers if balance is not None else self._pattern.preferred()
        if not wanted or self._behind:
            return ()
        peers = [links.state.peers.get(stream) for stream in list(wanted)]
        there = [peer for peer in peers if peer is not None and not peer.pending]
        return there if balance is None else balance.order(there)

    def _send_to(
        self, target: Any, frames: Sequence[OutFrame], timeout: int, hold: bool, released: Any, taken: Any
    ) -> Any:
        """Sends to this peer only (REP, ROUTER). None: it is gone; the message is dropped and counted."""
        pattern = self._pattern
        if isinstance(pattern, Router) and not pattern.mandatory:
            timeout = 0
        try:
            return self._send_frames(
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

    def _on_long_wait(self) -> None:
        """Called when the core, or a call of this file, has waited for `_long_wait` ms."""
        self._links.no_peer.long_wait()

    def _explained(self, error: Again) -> Again:
        """Adds to the error what is known of endpoints without a peer."""
        if self._links.state.fatal is not None:
            self._check_usable()
        return self._links.no_peer.error() if self._links.no_peer.alone else error


def encoded(given: Any, encoding: str) -> bytes:
    """Encodes a text. Raises ArgumentError."""
    if not isinstance(given, str):
        raise ArgumentError(f"text is wanted, not {type(given).__name__}", hint="send() sends bytes")
    try:
        return given.encode(encoding)
    except (LookupError, TypeError):
        raise wrong("encoding", encoding, 'the name of an encoding, for instance "utf-8"') from None
    except UnicodeEncodeError as error:
        what = f"{encoding} cannot encode this text: {error.reason}"
        raise ArgumentError(what, hint="send() sends bytes") from None


def json_of(given: Any, options: dict[str, Any]) -> bytes:
    """Encodes an object as JSON. Raises ArgumentError."""
    try:
        return json.dumps(given, **options).encode()
    except (TypeError, ValueError, RecursionError) as error:
        hint = "JSON has text, numbers, lists, dicts with text as keys, True, False, None; send() sends bytes"
        raise ArgumentError(f"it cannot be sent as JSON: {error}", hint=hint) from None


def _kept(frame: OutFrame) -> OutFrame:
    data = frame[4]
    return frame if type(data) is bytes else (*frame[:4], bytes(data))


def _dropped(tracker: Tracker | None) -> Tracker | None:
    """Ends the tracker of a dropped message, whose memory is free."""
    if tracker is not None:
        tracker._end(Broken("no peer took the message", hint="there is no such peer, or it had no room"))
    return tracker
