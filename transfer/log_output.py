"""Shows what the library logs: by the variable TRANSFER_LOG in a program, by `-v` in a command.

A library leaves logging to the program. So nothing happens here unless one of the two is given.
"""

from __future__ import annotations

import logging
import sys

from transfer import config

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_handler: logging.Handler | None = None


def show(level: str) -> None:
    """Sets the level of the logger `transfer` ("debug" to "error"), and writes its lines to standard error.

    A program that configured logging itself keeps its handlers: then only the level is set. Idempotent.
    """
    global _handler
    logger = logging.getLogger("transfer")
    logger.setLevel(level.upper())
    if _handler is None and not logger.hasHandlers():
        _handler = logging.StreamHandler(sys.stderr)
        _handler.setFormatter(logging.Formatter(FORMAT))
        logger.addHandler(_handler)


def apply_environment() -> None:
    """Does what TRANSFER_LOG says, if it is set. Raises OptionError."""
    level = config.log_level()
    if level:
        show(level)
