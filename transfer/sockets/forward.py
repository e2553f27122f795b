"""Messages as they arrived, for programs that forward them: topics, tensor headers and payloads unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from transfer.patterns.router_dealer import Router
from transfer.transports.arguments import flags_of, octets, shown, text, wrong
from transfer.transports.core.wire import MAX_TOPIC, Flag, fits
from transfer.transports.errors import ArgumentError, NotSupported, ProtocolError

if TYPE_CHECKING:
    from transfer.patterns.base import OutFrame
    from transfer.sockets.connections import Connections
    from transfer.sockets.tracker import Tracker
    from transfer.transports.core.contract import Frame

#: flags that say how a frame's payload is encoded, and so travel with it
_KEPT = int(Flag.TENSOR | Flag.EXTENDED | Flag.LZ4)


class Forwarding:
    """The methods of a socket for brokers and proxies."""

    if TYPE_CHECKING:
        _links: Connections

        def _check_forked(self) -> None: ...
        def _streams(self) -> list[Any]: ...
        def _recv_frames(self, flags: int = 0) -> list[Any]: ...
        def _sound(self, receive: Any, *arguments: Any) -> Any: ...
        def _send_outframes(
            self, frames: list[OutFrame], flags: int = 0, track: bool = False, copy: bool | None = None
        ) -> Tracker | None: ...

    @property
    def has_peers(self) -> bool:
        """Returns whether a peer is connected. Cheaper than `peers()`."""
        return bool(self._streams())

    def routes(self) -> dict[bytes, int]:
        """Returns, for a ROUTER, the identities of its peers and how many messages wait for each.

        Peers that set no identity have a generated one. Raises NotSupported.
        """
        streams: dict[bytes, Any] = {**self._router().routes()}
        return {identity: stream.queued for identity, stream in streams.items()}

    def waiting_bytes(self, identity: bytes) -> int | None:
        """Returns, for a ROUTER, the bytes that wait for a peer; None: it is not connected.

        Raises NotSupported.
        """
        stream: Any = self._router().routes().get(octets(identity, "identity"))
        return None if stream is None else int(stream.queued_bytes)

    def expel(self, identity: bytes, reason: str) -> bool:
        """Ends, for a ROUTER, the connection of a peer that misbehaves.

        Messages that wait for the peer and unread messages from it are dropped. Returns False if the peer is
        not connected. Raises NotSupported.
        """
        identity, reason = octets(identity, "identity"), text(reason, "reason")
        peer = self._router().routes().get(identity)
        return peer is not None and self._links.loss.lost(peer, ProtocolError("stalled", reason))

    def _router(self) -> Router:
        self._check_forked()
        pattern = self._links.state.pattern
        if not isinstance(pattern, Router):
            raise NotSupported(f"a {pattern.socket_type.name} has no identities", hint="a ROUTER has")
        return pattern

    def recv_frames(self, flags: int = 0) -> list[Frame | bytes]:
        """Receives one whole message as its frames, with topics and tensor headers, still compressed.

        Parts that the pattern adds (a ROUTER's identity) are bytes. `data` of a frame is bytes, or a lease
        whose memory belongs to the caller as long as it has a view of it. Raises as `recv`.
        """
        frames: list[Frame | bytes] = self._sound(self._recv_frames, flags)
        return frames

    def send_frames(
        self,
        frames: Sequence[tuple[bytes | None, bytes | None, int, Any]],
        flags: int = 0,
        *,
        copy: bool | None = None,
        track: bool = False,
    ) -> Tracker | None:
        """Sends one message of frames, each (topic or None, tensor header or None, flags, data).

        Topic, tensor header and flags are those of a frame that `recv_frames` returned. copy, track: as in
        `send`; with copy None, memory is held only until this returns. Raises as `send_multipart`.
        """
        try:
            parts = [_part(topic, meta, flags_, data) for topic, meta, flags_, data in frames]
        except ArgumentError:
            raise
        except (TypeError, ValueError):
            raise wrong("frames", frames, "a list of (topic, tensor header, flags, data)") from None
        return self._send_outframes(parts, flags_of(flags), track, copy)


def _part(topic: bytes | None, meta: bytes | None, flags: int, data: Any) -> OutFrame:
    """Makes a frame to send. Raises TypeError, ArgumentError."""
    if (topic is not None and type(topic) is not bytes) or (meta is not None and type(meta) is not bytes):
        raise TypeError
    if topic is not None and len(topic) > MAX_TOPIC:
        raise ArgumentError(f"a topic of {len(topic)} bytes", hint=f"at most {MAX_TOPIC} can travel")
    if (flags or meta is not None) and not fits(flags, meta):
        what = f"no frame has the flags {shown(flags)} and a tensor header of {len(meta or b'')} bytes"
        raise ArgumentError(what, hint="flags and meta of a frame that recv_frames() gave")
    return flags & _KEPT, 0, topic, meta, data
