"""The connections of one socket: they come, they go, and what they held is not lost in silence."""

from __future__ import annotations

from transfer.sockets.connections.connections import Connections

__all__ = ["Connections"]
