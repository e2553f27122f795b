"""Sinks for the data of a frame that come in pieces, and the receipt that a publisher gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transfer.broker.core.message import Buffer
    from transfer.broker.delivery.streaming_publish import StreamingPublish
    from transfer.broker.net.splice import SplicedChunk
    from transfer.transports.errors import TransferError


class StreamSink(Protocol):
    """Takes the data of a frame in pieces. accepts_spliced: also in pipes, by `piece_spliced`."""

    @property
    def accepts_spliced(self) -> bool: ...
    def piece(self, data: Buffer) -> None: ...
    def piece_spliced(self, data: SplicedChunk) -> None: ...
    def finish(self) -> None: ...
    def abandon(self, reason: str) -> None: ...


class Skipped:
    """Drops the data of a frame that was refused."""

    accepts_spliced = False

    def piece(self, data: Buffer) -> None:
        """Drops the data."""

    def piece_spliced(self, data: SplicedChunk) -> None:
        """Drops the data."""

    def finish(self) -> None:
        """Does nothing."""

    def abandon(self, reason: str) -> None:
        """Does nothing."""


SKIPPED = Skipped()


class StreamReceipt:
    """Reports to a publisher, once, that its message came whole and is kept, or why it is not.

    answer: called with None, or the reason.
    """

    __slots__ = ("_answer", "_kept", "_whole")

    def __init__(self, answer: Callable[[TransferError | None], None]) -> None:
        self._answer: Callable[[TransferError | None], None] | None = answer
        self._whole = self._kept = False

    def __call__(self, error: TransferError | None) -> None:
        """Takes the hub's result."""
        self._kept = True
        self._answer_when_complete(error)

    def whole(self) -> None:
        """Notes that the last byte came."""
        self._whole = True
        self._answer_when_complete(None)

    def cancel(self) -> None:
        """Cancels the report: the publisher knows the result already."""
        self._answer = None

    def _answer_when_complete(self, error: TransferError | None) -> None:
        if self._answer is not None and (error is not None or (self._kept and self._whole)):
            answer, self._answer = self._answer, None
            answer(error)


class LargePublish:
    """The data of a large PUBLISH, forwarded as they come."""

    def __init__(self, upload: StreamingPublish, receipt: StreamReceipt | None) -> None:
        self.piece = upload.piece
        self.piece_spliced = upload.piece_spliced
        self.abandon = upload.abandon
        self._upload = upload
        self._receipt = receipt

    @property
    def accepts_spliced(self) -> bool:
        """See Sink."""
        return self._upload.accepts_spliced

    def finish(self) -> None:
        """Ends the payload: all of it came."""
        self._upload.finish()
        if self._receipt is not None:
            self._receipt.whole()
