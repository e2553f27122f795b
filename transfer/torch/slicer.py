"""Cuts a stream of frames of any length into batches of equal length."""

from __future__ import annotations

from collections import deque

from transfer.transports.errors import comes_with

with comes_with("torch", __name__):
    import torch


Batch = dict[str, torch.Tensor]


class Slicer:
    """Takes frames and returns batches of `size` rows, in order. A batch inside one frame is a view of it;
    only a batch that spans frames is copied. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._frames: deque[Batch] = deque()
        self._start = 0  # rows of the first frame that were returned
        self.held = 0  # rows that are left

    def push(self, frame: Batch) -> None:
        """Adds a frame, whose tensors all have the same number of rows, at least one."""
        self._frames.append(frame)
        self.held += _rows(frame)

    def take(self) -> Batch | None:
        """Returns the next full batch, or None if there are too few rows."""
        return self._cut(self._size) if self.held >= self._size else None

    def rest(self) -> Batch | None:
        """Returns the last rows when no more frames follow: fewer than a batch, or None."""
        return self._cut(self.held) if self.held else None

    def clear(self) -> None:
        self._frames.clear()
        self._start = self.held = 0

    def _cut(self, rows: int) -> Batch:
        pieces: list[Batch] = []
        self.held -= rows
        while rows:
            frame = self._frames[0]
            count = min(rows, _rows(frame) - self._start)
            end = self._start + count
            pieces.append({name: tensor[self._start : end] for name, tensor in frame.items()})
            rows -= count
            self._start = end
            if end == _rows(frame):
                self._frames.popleft()
                self._start = 0
        if len(pieces) == 1:
            return pieces[0]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _rows(frame: Batch) -> int:
    return len(next(iter(frame.values())))
