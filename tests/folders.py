"""Folders that are gone when they are not needed any more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder() -> Iterator[Path]:
    """For one example of a property. Those of `tmp_path_factory` stay until all tests have ended, and a log
    reserves 64 MiB: a run of the tests took 18 GB."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
