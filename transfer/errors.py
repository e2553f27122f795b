"""The errors by a short name: `from transfer.errors import Again`. They live in `transports/errors.py`."""

from transfer.transports.errors import *  # noqa: F403 - one list of them is enough
