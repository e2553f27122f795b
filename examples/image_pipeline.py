"""Image pipeline: producers decode and augment, a training process receives batches in a DataLoader.

    python -m examples.image_pipeline --producers 2 --batches 50

Decoding is the expensive part, so it runs in separate processes, on this machine or others. Each sends
batches by PUSH; the high-water mark stops it when the trainer is behind. A DataLoader worker PULLs them.
A batch arrives in memory that becomes a torch tensor without a copy. On one host it goes by shared memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

import transfer

BATCH, SIZE = 16, 64


def produce(number: int, endpoint: str) -> None:
    """Makes images with a bright square on the left (label 0) or on the right (label 1), without end."""
    random = np.random.default_rng(number)
    with transfer.Context() as context, context.socket(transfer.PUSH, sndhwm=4) as push:
        push.connect(endpoint)
        while True:
            labels = random.integers(0, 2, BATCH)
            images = random.integers(0, 100, (BATCH, 3, SIZE, SIZE), dtype=np.uint8)
            for image, label in zip(images, labels, strict=True):
                row, column = random.integers(0, SIZE - 8), random.integers(0, SIZE // 2 - 8)
                image[:, row : row + 8, label * SIZE // 2 + column :][:, :, :8] = 255
            push.send_tensors({"images": images, "labels": labels}, meta={"producer": number})


class Images(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Batches as they come. One worker of the DataLoader owns the socket."""

    def __init__(self, endpoint: str, batches: int) -> None:
        self.endpoint = endpoint
        self.batches = batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=30_000) as pull:
            pull.bind(self.endpoint)
            for _ in range(self.batches):
                tensors, _ = pull.recv_tensors(like=torch)
                yield tensors["images"], tensors["labels"]


def train(loader: Any) -> float:
    """Trains a small network; the share of right answers in the last quarter of the batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.AvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(3 * (SIZE // 8) ** 2, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    right: list[float] = []
    for images, labels in loader:
        scores = model(images.float() / 255)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.append(float((scores.argmax(1) == labels).float().mean()))
    last = right[-max(1, len(right) // 4) :]
    return sum(last) / len(last)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--port", type=int, default=5591, help="where the trainer listens")
    chosen = parser.parse_args(arguments)
    endpoint = f"tcp://127.0.0.1:{chosen.port}"
    spawn = multiprocessing.get_context("spawn")
    producers = [spawn.Process(target=produce, args=(n, endpoint)) for n in range(chosen.producers)]
    for producer in producers:
        producer.start()
    begin = time.monotonic()
    try:
        loader = DataLoader(
            Images(endpoint, chosen.batches), batch_size=None, num_workers=1, multiprocessing_context="spawn"
        )
        accuracy = train(loader)
    finally:
        for producer in producers:
            producer.terminate()
            producer.join()
    images = chosen.batches * BATCH
    print(f"{images} images in {time.monotonic() - begin:.1f} s, {accuracy:.0%} right at the end")


if __name__ == "__main__":
    main()
