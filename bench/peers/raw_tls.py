"""Python's TLS sockets, blocking, with a fixed receive buffer."""

from __future__ import annotations

import socket
import ssl

from bench.peers.base import Channel
from bench.peers.raw import Raw
from bench.work import Work


class RawTls(Raw):
    name = "raw-tls"

    def _channel(self, connection: socket.socket, work: Work, address: str) -> Channel:
        accepting = not address or connection.getsockname()[1] == int(address.rsplit(":", 1)[1])
        purpose = ssl.PROTOCOL_TLS_SERVER if accepting else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(work.params["cert"], work.params["key"])
        context.load_verify_locations(work.params["authority"])
        context.verify_mode = ssl.CERT_REQUIRED
        connection.settimeout(60)
        wrapped = context.wrap_socket(
            connection, server_side=accepting, server_hostname=None if accepting else "127.0.0.1"
        )
        return super()._channel(wrapped, work, address)
