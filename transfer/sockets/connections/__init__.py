"""The connections of one socket: how they begin, how they end, and what happens to their messages.

admission            new connections: the pattern admits them, and the core gets their streams
connection_loss      lost connections: their messages go to another peer, or are counted and reported
connections          the connections of one socket
control              control frames, and what the reactor finds on connections while the application is busy
credits              how credits are counted, and how they are read while no call receives
dialer               the start of a socket's connections
directory_connector  one endpoint that stands for many
heartbeats           heartbeats: sent to idle peers, and awaited from silent ones
log_reader           what a SUB receives of publishers' logs: where it is in each topic, and what is missing
no_peer              explains why a socket has no peer, in errors and in the log
orphans              messages that wait for a peer: those of lost connections go first, to another one
queue_limits         adapts the byte limits of the peers' queues to their throughput and to the free memory
refusal              why a side ends a connection, in a REFUSED frame
state                the data of a socket's connections, and the small functions that all of their parts use
topic_positions      a SUB's positions in a publisher's log, by topic
unread_messages      messages that a lost peer sent before its end and that are not read yet
upstream             what an XPUB receives: its peers' subscriptions, and what XSUBs send besides them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.sockets.connections.connections import Connections

__all__ = ["Connections"]

exports(
    __name__,
    {
        "connections": "Connections",
    },
)
