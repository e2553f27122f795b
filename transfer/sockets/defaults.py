"""Default values of the options of sockets: of `transfer`, and of pyzmq for `transfer.zmq`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defaults:
    """The options of a new socket. Times in milliseconds, -1 is endless; sizes in bytes.

    reply_timeout: the receive time-out of a REQ. immediate: messages wait for a connection (True)
    or queue for an endpoint that is not connected yet (False). shares_endpoints: sockets whose peers are of
    different types may bind one endpoint.
    """

    linger: int = 1000
    immediate: bool = True
    reply_timeout: int = 30_000
    send_high_water: int = 1000
    send_high_water_bytes: int = 64 << 20
    reconnect_ivl_max: int = 5000
    heartbeat_ivl: int = 5000
    heartbeat_timeout: int = 60_000
    handshake_ivl: int = 30_000
    shares_endpoints: bool = True


TRANSFER = Defaults()
#: pyzmq's defaults, for `transfer.zmq`
PYZMQ = Defaults(
    linger=-1,
    immediate=False,
    reply_timeout=-1,
    reconnect_ivl_max=0,
    heartbeat_ivl=0,
    heartbeat_timeout=-1,
    shares_endpoints=False,
)
