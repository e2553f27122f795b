"""Endpoints as Mooncake programs write them: a scheme is optional."""

from __future__ import annotations

from transfer.transports.address import parse


def complete(endpoint: str, *, rdma: bool = False) -> str:
    """The endpoint with its scheme: `host:port` means tcp, or rdma if the configuration says so.

    Raises AddressError.
    """
    return str(parse(endpoint, default_scheme="rdma" if rdma else "tcp"))
