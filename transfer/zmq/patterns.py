"""REQ and ROUTER as libzmq's: lost peers and malformed messages raise no errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transfer import patterns
from transfer.patterns.base import Anyone, OutFrame, Pattern, Peer
from transfer.transports.core.wire import SocketType


class Requester(patterns.Requester):
    """Waits on when the peer with its request is lost: only the program's own time-out ends the wait."""

    @property
    def failure(self) -> BaseException | None:
        return None

    @failure.setter
    def failure(self, error: BaseException | None) -> None:
        self.turn.failure = error

    def expect(self) -> None:
        if self.turn.failure is not None:  # noted by the core
            self.turn.failure = None
            self.drop("peer_gone")
        super().expect()

    def fail(self, peer: Peer, error: BaseException, moved: Collection[int] = ()) -> bool:
        if self.has_open(peer):
            self.drop("peer_gone")
        return False


class Router(patterns.Router):
    """Drops and counts messages that cannot have a receiver."""

    def malformed(
        self, frames: Sequence[OutFrame], what: str, hint: str
    ) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        self.drop("malformed")
        return None, frames


#: patterns of sockets of these types; other types have those of `transfer`
ZMQ_PATTERNS: dict[SocketType, type[Pattern]] = {cls.socket_type: cls for cls in (Requester, Router)}
