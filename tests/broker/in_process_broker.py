"""A broker in this process, on free ports, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer.broker.config.options import BrokerOption
from transfer.broker.config.settings import Settings
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.transports.security.settings import Security

FREE = "tcp://127.0.0.1:0"
#: all fronts that need no optional library, each on a free port
ANYWHERE = Settings(
    native=NativeSettings(FREE, FREE, FREE), ttp=0, pybroker=0, rqueue=0, http=None, spool=None, abtp=None
)


@contextmanager
def running(folder: Path, **changes: Any) -> Iterator[Broker]:
    """A broker on this folder; its ports stand in `ports`, its endpoints in `endpoints`."""
    with Broker(folder, replace(ANYWHERE, **changes)) as broker:
        yield broker


def default_of(option: BrokerOption) -> Any:
    """The value of an option of which nothing was said."""
    value: Any = Settings(security=Security())
    for name in option.path:
        value = getattr(value, name)
    return value
