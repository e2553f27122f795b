"""The compiled core. `transports/core.py` decides whether it is used; importing this needs the build."""

from transports.native.flusher import Flusher
from transports.native.pool import Frame, HeldBuffer, Lease, Pool
from transports.native.socket import SocketBase
from transports.native.stream import Stream
from transports.native.turn import Turn

__all__ = ["Flusher", "Frame", "HeldBuffer", "Lease", "Pool", "SocketBase", "Stream", "Turn"]
