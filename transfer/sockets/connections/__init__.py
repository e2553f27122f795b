"""The connections of one socket: how they begin, how they end, and what happens to their messages."""

from __future__ import annotations

from transfer.sockets.connections.connections import Connections

__all__ = ["Connections"]
