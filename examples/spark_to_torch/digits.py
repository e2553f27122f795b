"""The data: UCI's handwritten digits, split once, the training part as Parquet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

TEST_IMAGES = 360
_SEED = 7


@dataclass(frozen=True)
class Digits:
    """Images are float32 (n, 64) between 0 and 1, labels int64 (n,)."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load() -> Digits:
    """Returns the digits in a fixed random order, the first `TEST_IMAGES` of them for the test."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(_SEED).permutation(len(images))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int64)
    return Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES])


def write_parquet(digits: Digits, folder: Path, files: int = 4) -> int:
    """Writes the training part to several files with the columns id, image and label; returns the rows.

    `id` numbers the rows from 0, so that the receiver can check which rows have arrived.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    rows = len(digits.train_labels)
    for number, ids in enumerate(np.array_split(np.arange(rows), files)):
        images = digits.train_images[ids]
        offsets = np.arange(0, images.size + 1, images.shape[1], dtype=np.int32)
        table = pa.table(
            {
                "id": ids,
                "image": pa.ListArray.from_arrays(offsets, images.reshape(-1)),
                "label": digits.train_labels[ids],
            }
        )
        parquet.write_table(table, folder / f"digits-{number}.parquet")
    return rows
