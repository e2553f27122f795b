"""Certificates of a session, and acceptors and connectors of one reactor."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from transfer.certificates import Authority, Issued
from transfer.transports.address import Address, parse
from transfer.transports.connect.connection import ConnectOptions
from transfer.transports.connect.establish import reach, serve
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import TransferError
from transfer.transports.handshake.identity import make_hello
from transfer.transports.reactor import Reactor
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security
from transfer.transports.tcp import TcpTransport
from transfer.transports.testing.ends import Side, close_all, until

TOKEN = "137dc6fd7764291e151bed2a85c14358"


class SecurityPki:
    """An authority, and what it has signed. Each `security` is mutual TLS, unless changed."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.issued = authority.issue()

    def security(self, issued: Issued | None = None, **changed: Any) -> Security:
        issued = issued or self.issued
        usual = {
            "certificate": issued.certificate,
            "key": issued.key,
            "authority": self.authority.path,
        }
        return Security(**usual | changed)


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> SecurityPki:
    return SecurityPki(Authority(tmp_path_factory.mktemp("authority")))


@pytest.fixture(params=["pure", "native"])
def core(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"transfer.transports.core.{request.param}")


class ConnectionPair:
    """Acceptors and connectors of one reactor."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.reactor = Reactor()
        self._stack = ExitStack()
        self._stack.callback(self.reactor.close)

    def serve(
        self, security: Security, *, timeout: float = 30.0, credentials: Credentials | None = None,
        endpoint: str = "tcp://127.0.0.1:*", **hello: Any,
    ) -> tuple[Side, Address]:  # fmt: skip
        side = Side()
        acceptor = serve(
            self.reactor, TcpTransport(), parse(endpoint),
            hello=lambda: make_hello(SocketType.PULL, **hello),
            on_connected=side.connected.append, on_failed=side.refused, handshake_timeout=timeout,
            credentials=credentials or Credentials(security, self.core),
        )  # fmt: skip
        self._stack.callback(close_all, side)
        self._stack.callback(acceptor.close)
        return side, acceptor.address

    def reach(
        self, address: Address, security: Security, *, core: ModuleType | None = None,
        credentials: Credentials | None = None, patience: float = 30.0, pause: float = 60.0, **hello: Any,
    ) -> Side:  # fmt: skip
        """Tries once, unless `pause` says otherwise."""
        side = Side()
        connector = reach(
            self.reactor, TcpTransport(), address,
            hello=lambda: make_hello(SocketType.PUSH, **hello),
            on_connected=side.connected.append, on_failed=side.refused,
            options=ConnectOptions(reconnect_first=pause, handshake_timeout=patience),
            credentials=credentials or Credentials(security, core or self.core),
        )  # fmt: skip
        self._stack.callback(close_all, side)
        self._stack.callback(connector.close)
        return side

    def refused(self, server: Side, client: Side) -> tuple[TransferError, TransferError]:
        """(what the server found, what the client found)"""
        until(lambda: server.failed and client.failed, "the refusal on both sides")
        assert not server.connected and not client.connected
        return server.failed[0], client.failed[0]

    def meets(self, server: Side, client: Side) -> None:
        until(
            lambda: server.connected and client.connected, f"the connection: {server.failed} {client.failed}"
        )

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def pair(core: ModuleType) -> Iterator[ConnectionPair]:
    made = ConnectionPair(core)
    yield made
    made.close()
