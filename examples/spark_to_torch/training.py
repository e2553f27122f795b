"""The training side: a small network, and the check that an epoch has each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from transfer.transports.errors import ProtocolError


class Trainer:
    """A network of two hidden layers for images of 64 pixels, with its optimizer."""

    def __init__(self, epochs: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self._network = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=4e-3)
        self._schedule = torch.optim.lr_scheduler.LinearLR(self._optimizer, 1.0, 0.1, total_iters=epochs)

    def train(
        self,
        batches: Iterable[tuple[Tensor, ...]],
        rows: int,
        on_batch: Callable[[int, float], None],
    ) -> float:
        """Trains one epoch over (id, image, label); returns the mean loss. Raises ProtocolError unless the
        ids are 0 … rows - 1, each once. Calls `on_batch` with the rows and the loss of each batch."""
        seen = torch.zeros(rows, dtype=torch.int64)
        total, count = 0.0, 0
        self._network.train()
        for ids, images, labels in batches:
            if ids.min() < 0 or ids.max() >= rows:
                raise ProtocolError("doubled_rows", "a row arrived that was never sent")
            seen += torch.bincount(ids, minlength=rows)
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._network(images), labels)
            loss.backward()
            self._optimizer.step()
            total += loss.item() * len(ids)
            count += len(ids)
            on_batch(len(ids), loss.item())
        check_rows(seen)
        self._schedule.step()
        return total / max(count, 1)

    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Returns the share of images that the network recognizes, 0 to 1."""
        self._network.eval()
        with torch.no_grad():
            right = self._network(images).argmax(1) == labels
        return float(right.float().mean())


def check_rows(seen: Tensor) -> None:
    """Checks `seen`, which has how often each row arrived. Raises ProtocolError unless each is 1."""
    lost = (seen == 0).nonzero().flatten().tolist()
    doubled = (seen > 1).nonzero().flatten().tolist()
    if lost:
        raise ProtocolError("lost_rows", f"{len(lost)} of {len(seen)} rows were lost, the first is {lost[0]}")
    if doubled:
        raise ProtocolError(
            "doubled_rows",
            f"{len(doubled)} of {len(seen)} rows arrived more than once, the first is {doubled[0]}",
        )
