"""What commands share that serve until a signal ends them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transports import descriptors

_log = logging.getLogger("transfer")


@contextmanager
def logged() -> Iterator[None]:
    """What the library logs goes to standard error, one line each with its time."""
    logger = logging.getLogger("transfer")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def raise_descriptor_limit() -> None:
    """To the hard limit, for this process: see `transports.descriptors`. The log says so."""
    raised = descriptors.raise_descriptor_limit()
    if raised is not None:
        _log.info("the limit of descriptors (ulimit -n) is %d now, and was %d", raised[1], raised[0])
