"""Where the data of a frame go that come in pieces, and the receipt that a publisher gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transfer.broker.delivery.message import Buffer
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.net.splice import SplicedChunk
    from transfer.transports.errors import TransferError


class Sink(Protocol):
    """Where the data of a frame go, piece by piece. pours: they may be given in pipes, `poured`."""

    @property
    def pours(self) -> bool: ...
    def piece(self, data: Buffer) -> None: ...
    def poured(self, data: SplicedChunk) -> None: ...
    def finish(self) -> None: ...
    def abandon(self, reason: str) -> None: ...


class Skipped:
    """For data that nobody wants: of a frame that was refused."""

    pours = False

    def piece(self, data: Buffer) -> None:
        """Nothing is kept."""

    def poured(self, data: SplicedChunk) -> None:
        """Nothing is kept."""

    def finish(self) -> None:
        """Nothing was kept."""

    def abandon(self, reason: str) -> None:
        """Nothing was kept."""


SKIPPED = Skipped()


class Receipt:
    """Tells a publisher, once, what became of its message: all of it came and is kept, or why it is not.

    answer: is called with None, or the reason. whole: all of it came already.
    """

    __slots__ = ("_answer", "_kept", "_whole")

    def __init__(self, answer: Callable[[TransferError | None], None], *, whole: bool) -> None:
        self._answer: Callable[[TransferError | None], None] | None = answer
        self._whole = whole
        self._kept = False

    def __call__(self, error: TransferError | None) -> None:
        """The hub's word."""
        self._kept = True
        self._look(error)

    def whole(self) -> None:
        """The last byte came."""
        self._whole = True
        self._look(None)

    def cancel(self) -> None:
        """The publisher knows already."""
        self._answer = None

    def _look(self, error: TransferError | None) -> None:
        if self._answer is not None and (error is not None or (self._kept and self._whole)):
            answer, self._answer = self._answer, None
            answer(error)


class Large:
    """The data of a large PUBLISH, which go on as they come."""

    def __init__(self, passage: StreamingPublish, receipt: Receipt | None) -> None:
        self.piece = passage.piece
        self.poured = passage.poured
        self.abandon = passage.abandon
        self._passage = passage
        self._receipt = receipt

    @property
    def pours(self) -> bool:
        """See Sink."""
        return self._passage.pours

    def finish(self) -> None:
        """All of it came."""
        self._passage.finish()
        if self._receipt is not None:
            self._receipt.whole()
