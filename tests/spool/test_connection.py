"""A link makes a socket for each try to connect; what the log says is of the link."""

from __future__ import annotations

import logging
import time

import pytest

import transfer
from transfer.broker.clients.native_socket import connected_socket
from transfer.spool import Spool
from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.format.protocol import ListRuns
from transfer.transports.errors import Again
from transfer.transports.security.settings import Security


@pytest.fixture
def lines(caplog):
    """The warnings of the log, so far."""
    caplog.set_level(logging.WARNING, "transfer")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "transfer"]


@pytest.fixture
def sockets(monkeypatch):
    """Those that were made. They warn of a wait after 10 ms."""
    made, make = [], transfer.Context.socket

    def impatient(*arguments, **options):
        made.append(make(*arguments, **options))
        made[-1]._long_wait = 10
        return made[-1]

    monkeypatch.setattr(transfer.Context, "socket", impatient)
    return made


def test_a_spool_that_is_away_is_one_warning_however_often_it_is_tried(tmp_path, lines, sockets):
    with Spool(tmp_path / "spool") as spool:
        link = ReconnectingClient(spool.endpoint, timeout=10)
        link.ask(ListRuns())
    try:
        sockets.clear()
        for _ in range(2):
            with pytest.raises(Again, match="no spool answers"):
                link.ask(ListRuns(), timeout=0.8)
        assert len(sockets) > 2
        (line,) = lines()
        assert line.startswith("a DEALER waits: ")
    finally:
        link.close()


def test_a_token_that_is_wrong_is_one_warning(lines, sockets):
    token = "d1f0a7c2e94b4458b6f3870c2a9e5d16"
    with (
        transfer.Context(security=Security(token=token)) as theirs,
        theirs.socket(transfer.ROUTER) as router,
        transfer.Context(security=Security(token=token[::-1])) as ours,
    ):
        router.bind("tcp://127.0.0.1:0")
        with pytest.raises(Again):
            connected_socket(ours, router.last_endpoint, time.monotonic() + 1.0, lambda: False)
        assert len(sockets) > 2
        (line,) = [line for line in lines() if line.startswith("DEALER ")]
        assert ": token: " in line
