"""Default values of the options of sockets: of `transfer`, and of pyzmq for `transfer.zmq`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transfer.transports.core.wire import MAX_DATA

if TYPE_CHECKING:
    from transfer.sockets.options import BalanceOption, CompressionOption


@dataclass(frozen=True, slots=True)
class Defaults:
    """The options of a new socket, by their names (`options.py` says what they mean), and two values more.

    reply_timeout: rcvtimeo of a REQ, in milliseconds; -1: as of other sockets. shares_endpoints: sockets
    whose peers are of different types may bind one endpoint.
    """

    sndhwm: int = 1000
    sndhwm_bytes: int = 64 << 20
    adaptive_hwm: int = 0
    rcvhwm: int = 1000
    sndtimeo: int = -1
    rcvtimeo: int = -1
    linger: int = 1000
    immediate: bool = True
    conflate: bool = False
    resend: bool = False
    routing_id: bytes = b""
    router_mandatory: bool = False
    router_handover: bool = False
    xpub_verbose: bool = False
    xpub_verboser: bool = False
    xpub_manual: bool = False
    xpub_nodrop: bool = False
    xpub_welcome_msg: bytes = b""
    req_relaxed: bool = False
    req_correlate: bool = False
    maxmsgsize: int = MAX_DATA
    checksum: bool = False
    gpu_staging: bool = True
    balance: BalanceOption = None
    compression: CompressionOption = None
    copy_threshold: int = 64 << 10
    spin_us: int = 0
    reconnect_ivl: int = 100
    reconnect_ivl_max: int = 5000
    connect_timeout: int = 0
    handshake_ivl: int = 30_000
    heartbeat_ivl: int = 5000
    heartbeat_timeout: int = 60_000
    frame_timeout: int = 60_000
    backlog: int = 4096
    sndbuf: int = -1
    rcvbuf: int = -1
    tcp_keepalive: int = -1
    tcp_keepalive_idle: int = -1
    tcp_keepalive_intvl: int = -1
    tcp_keepalive_cnt: int = -1
    reply_timeout: int = 30_000
    shares_endpoints: bool = True


TRANSFER = Defaults()
#: pyzmq's defaults, for `transfer.zmq`
PYZMQ = Defaults(
    linger=-1,
    immediate=False,
    maxmsgsize=-1,
    reconnect_ivl_max=0,
    heartbeat_ivl=0,
    heartbeat_timeout=-1,
    backlog=100,
    reply_timeout=-1,
    shares_endpoints=False,
)
#: linger of a SUB or XSUB of pyzmq
PYZMQ_SUB_LINGER = 0
