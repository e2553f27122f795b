"""The compiled core. `transports/core.py` decides whether it is used; importing this needs the build."""

from transports.native.pool import Frame, HeldBuffer, Lease, Pool
from transports.native.socket import SocketBase, Turn
from transports.native.stream import Flusher, Stream

__all__ = ["Flusher", "Frame", "HeldBuffer", "Lease", "Pool", "SocketBase", "Stream", "Turn"]
