"""REQ and ROUTER as libzmq's: lost peers and malformed messages raise no errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from transfer import patterns
from transfer.patterns.base import Anyone, OutFrame, Pattern, Peer
from transfer.transports.errors import NotSupported
from transfer.zmq.constants import SocketType as ZmqType


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


class Stream(patterns.Pair):
    """Of a STREAM, which programs make among their other sockets, for a debugger say: it can be made and
    polled, and neither bound, connected nor sent to."""

    def route(self, frames: Sequence[OutFrame]) -> tuple[Peer | Anyone | None, Sequence[OutFrame]]:
        raise no_stream()


def no_stream() -> NotSupported:
    """Returns the error of what a STREAM cannot do."""
    what = "a STREAM socket would speak raw TCP, which is not implemented"
    return NotSupported(what, hint="use Python's `socket`; see docs/zmq-compat.md")


#: patterns of sockets of these types; other types have those of `transfer`
ZMQ_PATTERNS: dict[ZmqType, type[Pattern]] = {
    ZmqType.REQ: Requester,
    ZmqType.ROUTER: Router,
    ZmqType.STREAM: Stream,
}
