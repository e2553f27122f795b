"""What commands share that serve until a signal ends them."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
    """This process may have as many descriptors as the hard limit says: the usual soft one is for programs
    that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the system allows no process as many
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _log.debug("the limit of descriptors is %d, and was %d", hard, soft)
