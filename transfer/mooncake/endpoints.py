"""Endpoints as in Mooncake programs: the scheme is optional."""

from __future__ import annotations

from transfer.transports.address import parse


def complete(endpoint: str, *, rdma: bool = False) -> str:
    """Adds a missing scheme: `host:port` means tcp, or rdma with that setting.

    Raises AddressError.
    """
    return str(parse(endpoint, default_scheme="rdma" if rdma else "tcp"))
